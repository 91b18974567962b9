"""Write a synthetic Nsight Systems export of a chosen size, for benchmarks.

    python scripts/make_nsight.py OUT.sqlite --kernels 5000000

The structure and the answers are those of tests/support/nsight_case.py, whatever the size.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.nsight_case import Shape, split_for, write_megatron, write_megatron_files


def main() -> None:
    parser = argparse.ArgumentParser(description="write a synthetic Nsight Systems export")
    parser.add_argument("out", type=Path, help="the file to write; a directory with --files")
    parser.add_argument("--kernels", type=int, default=100_000, help="about how many kernels")
    parser.add_argument("--files", action="store_true", help="one file a rank")
    parser.add_argument(
        "--layers", type=int, default=0, help="framework ranges for each collective"
    )
    options = parser.parse_args()
    shape = Shape(split=split_for(options.kernels), layers=options.layers)
    if options.files:
        options.out.mkdir(parents=True)
        answers = write_megatron_files(options.out, shape)
    else:
        if options.out.exists():
            sys.exit(f"{options.out} is there already")
        answers = write_megatron(options.out, shape)
    kernels = sum(one.kernels for one in answers.values())
    print(f"{options.out}: {kernels:,} kernels on devices {', '.join(map(str, answers))}")


if __name__ == "__main__":
    main()
