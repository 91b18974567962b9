// @ts-check
// One step as the page holds it: the columns of the data become blocks with a place in a lane. Nothing is accounted
// here: what was hidden, waited for or exposed comes with the data.

/** @typedef {object} Block
 * @property {"compute" | "communication"} lane
 * @property {number} rank place in `Step.ranks`
 * @property {number} at place in its lane's columns
 * @property {number} row
 * @property {number} start ns after the zero of the step
 * @property {number} end
 * @property {boolean} open it has no finish
 * @property {string} label
 * @property {string} phase
 * @property {number | null} ready
 * @property {number | null} launch */
/** @typedef {object} RankLanes
 * @property {string} label
 * @property {any} data
 * @property {Block[]} compute
 * @property {Block[]} communication
 * @property {number} computeRows
 * @property {number} communicationRows
 * @property {number} crowded blocks that lie over others, since the rows were full */
/** @typedef {{name: string, from: number, to: number, ranks: RankLanes[], data: any}} Step */

const COMPUTE_ROWS = 3;
const COMMUNICATION_ROWS = 8;

/** @param {any} step of the data @returns {string} */
function stepName(step) {
  return step.step === null ? "the whole window" : `step ${step.step}`;
}

/** @param {any} lanes @param {any} step of the data @param {string[]} labels of the ranks @returns {Step} */
function buildStep(lanes, step, labels) {
  const ranks = step.ranks.map((/** @type {any} */ data, /** @type {number} */ place) => {
    const compute = computeBlocks(lanes, data, place);
    const communication = communicationBlocks(lanes, data, place);
    const [computeRows, over] = intoRows(compute, COMPUTE_ROWS);
    const [communicationRows, more] = intoRows(communication, COMMUNICATION_ROWS);
    return { label: labels[data.rank], data, compute, communication, computeRows, communicationRows, crowded: over + more };
  });
  let from = Infinity, to = -Infinity;
  for (const rank of ranks) {
    from = Math.min(from, rank.data.start);
    to = Math.max(to, rank.data.end);
    // A collective may outlive its step, but one of a hang must not make the step a dot.
    const length = rank.data.end - rank.data.start;
    for (const block of rank.communication) {
      if (block.end <= rank.data.end + length) to = Math.max(to, block.end);
    }
  }
  for (const rank of ranks) {
    for (const block of rank.communication) if (block.open) block.end = to;
  }
  return { name: stepName(step), from, to, ranks, data: step };
}

/** @param {any} lanes @param {any} data of one rank @param {number} rank @returns {Block[]} */
function computeBlocks(lanes, data, rank) {
  const { start, length, name, phase, count } = data.compute;
  return start.map((/** @type {number} */ from, /** @type {number} */ at) => {
    const word = lanes.phases[phase[at]];
    const spans = count ? count[at] : 1;
    const called = lanes.texts[name[at]][0] || (phase[at] ? word : "compute");
    return { lane: "compute", rank, at, row: 0, start: from, end: from + length[at], open: false,
      label: spans > 1 ? `${called} × ${whole(spans)}` : called, phase: word, ready: null, launch: null };
  });
}

/** @param {any} lanes @param {any} data of one rank @param {number} rank @returns {Block[]} */
function communicationBlocks(lanes, data, rank) {
  const sent = data.sent;
  return sent.begin.map((/** @type {number | null} */ begin, /** @type {number} */ at) => {
    const from = begin ?? sent.launch[at] ?? sent.ready[at] ?? sent.finish[at] ?? data.start;
    const finish = sent.finish[at];
    const kind = lanes.texts[sent.kind[at]][0];
    return { lane: "communication", rank, at, row: 0, start: from, end: finish ?? from, open: finish === null,
      // The owner of a profile's collective is what launched it: a long path, which the card has room for.
      label: (data.profile ? "" : lanes.texts[sent.name[at]][0]) || kind, phase: lanes.phases[sent.phase[at]],
      ready: sent.ready[at], launch: sent.launch[at] };
  });
}

/** Give each block the first row in which nothing lies before it any more.
 * @param {Block[]} blocks by start @param {number} most
 * @returns {[number, number]} how many rows that takes, and how many blocks lie over others in the last one */
function intoRows(blocks, most) {
  /** @type {number[]} */
  const ends = [];
  let crowded = 0;
  for (const block of blocks) {
    let row = ends.findIndex((end) => end <= block.start);
    if (row < 0) {
      crowded += ends.length === most ? 1 : 0;
      row = Math.min(ends.length, most - 1);
    }
    block.row = row;
    ends[row] = Math.max(ends[row] ?? -Infinity, block.open ? Infinity : block.end);
  }
  return [Math.max(1, ends.length), crowded];
}
