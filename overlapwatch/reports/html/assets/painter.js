// @ts-check
// Painting the lanes of a step on a canvas. Compute stands over communication; under both a thin band marks the time in
// which communication ran and compute did not. A bucket's whisker reaches from its ready time to its launch (dotted)
// and on to its start (line).

const GUTTER = 88;
const NARROW = 560;
const COMPUTE_HEIGHT = 22;
const COMMUNICATION_HEIGHT = 18;
const BAND_HEIGHT = 5;
const LANE_GAP = 3;
const RANK_GAP = 16;
const TITLE_HEIGHT = 16;
const AXIS_HEIGHT = 22;
const FONT = "11px ";

/** @typedef {{from: number, to: number}} View */
/** @typedef {{rank: number, top: number, compute: number, communication: number, band: number, bottom: number}} Place */

/** Where the lanes of each rank lie on a canvas of this width.
 * @param {Step} step @param {number} width */
function placesOf(step, width) {
  const narrow = width < NARROW;
  let y = AXIS_HEIGHT;
  const places = step.ranks.map((rank, at) => {
    const top = y;
    if (narrow) y += TITLE_HEIGHT;
    const compute = y;
    y += rank.computeRows * COMPUTE_HEIGHT + LANE_GAP;
    const communication = y;
    y += rank.communicationRows * COMMUNICATION_HEIGHT + LANE_GAP;
    const band = y;
    y += BAND_HEIGHT;
    const bottom = y;
    y += RANK_GAP;
    return { rank: at, top, compute, communication, band, bottom };
  });
  return { places, height: y - RANK_GAP + 6, gutter: narrow ? 0 : GUTTER };
}

/** The round distance between ticks, ns. @param {number} span @param {number} ticks */
function tickStep(span, ticks) {
  const rough = span / Math.max(1, ticks);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const times = [1, 2, 5, 10].find((one) => one * power >= rough) ?? 10;
  return times * power;
}

/** Paint a step.
 * @param {HTMLCanvasElement} canvas @param {Step} step @param {View} view @param {Block | null} marked
 * @returns {{places: Place[], gutter: number, width: number}} */
function paint(canvas, step, view, marked) {
  const width = canvas.clientWidth;
  const { places, height, gutter } = placesOf(step, width);
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const draw = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.clearRect(0, 0, width, height);
  draw.font = FONT + getComputedStyle(canvas).fontFamily;
  draw.textBaseline = "middle";
  const perNs = (width - gutter) / (view.to - view.from);
  const x = (/** @type {number} */ ns) => gutter + (ns - view.from) * perNs;
  paintAxis(draw, view, x, gutter, width, height);
  for (const place of places) {
    const rank = step.ranks[place.rank];
    paintNames(draw, rank, place, gutter);
    draw.save();
    draw.beginPath();
    draw.rect(gutter, 0, width - gutter, height);
    draw.clip();
    paintTail(draw, rank, place, x);
    paintWaits(draw, rank, place, x);
    paintBlocks(draw, rank.compute, place.compute, COMPUTE_HEIGHT, x, width, marked);
    for (const block of rank.communication) paintWhisker(draw, block, place.communication, x, width);
    paintBlocks(draw, rank.communication, place.communication, COMMUNICATION_HEIGHT, x, width, marked);
    draw.fillStyle = colour("exposed");
    for (const [start, end] of rank.data.exposed) {
      draw.fillRect(x(start), place.band, Math.max(1, (end - start) * perNs), BAND_HEIGHT);
    }
    paintEdges(draw, rank, place, x);
    draw.restore();
  }
  return { places, gutter, width };
}

/** @param {CanvasRenderingContext2D} draw @param {View} view @param {(ns: number) => number} x
 * @param {number} gutter @param {number} width @param {number} height */
function paintAxis(draw, view, x, gutter, width, height) {
  const step = tickStep(view.to - view.from, (width - gutter) / 90);
  const places = Math.max(0, 6 - Math.floor(Math.log10(step)));
  draw.strokeStyle = colour("line");
  draw.fillStyle = colour("quiet");
  draw.lineWidth = 1;
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    const left = Math.round(x(at)) + 0.5;
    draw.beginPath();
    draw.moveTo(left, AXIS_HEIGHT - 5);
    draw.lineTo(left, height);
    draw.stroke();
    const text = `${fixed(at / 1e6, Math.min(places, 6))} ms`;
    const room = draw.measureText(text).width;
    if (left + room < width + 4) draw.fillText(text, Math.max(0, left + 3), 9);
  }
}

/** @param {CanvasRenderingContext2D} draw @param {RankLanes} rank @param {Place} place @param {number} gutter */
function paintNames(draw, rank, place, gutter) {
  draw.fillStyle = colour("ink");
  if (!gutter) {
    draw.fillText(rank.label, 2, place.top + TITLE_HEIGHT / 2);
    return;
  }
  const fits = (/** @type {string} */ text) => {
    let cut = text;
    while (cut.length > 1 && draw.measureText(cut).width > gutter - 8) cut = `${cut.slice(0, -2)}…`;
    return cut;
  };
  draw.fillText(fits(rank.label), 0, place.compute + COMPUTE_HEIGHT / 2);
  draw.fillStyle = colour("quiet");
  draw.fillText("communication", 0, place.communication + COMMUNICATION_HEIGHT / 2);
}

/** @param {CanvasRenderingContext2D} draw @param {RankLanes} rank @param {Place} place @param {(ns: number) => number} x */
function paintTail(draw, rank, place, x) {
  const { last_compute_end_ns: from, last_reduce_end_ns: to } = rank.data.marks;
  if (!rank.data.tail_ns || from === null || to === null) return;
  draw.fillStyle = colour("tail");
  draw.fillRect(x(from), place.compute - 2, Math.max(1, x(to) - x(from)), place.bottom - place.compute + 4);
}

/** @param {CanvasRenderingContext2D} draw @param {RankLanes} rank @param {Place} place @param {(ns: number) => number} x */
function paintWaits(draw, rank, place, x) {
  draw.fillStyle = colour("wait");
  for (const [start, end] of rank.data.waits) {
    draw.fillRect(x(start), place.compute + COMPUTE_HEIGHT - 6, Math.max(1, x(end) - x(start)), 3);
  }
}

/** @param {CanvasRenderingContext2D} draw @param {Block[]} blocks @param {number} top @param {number} height
 * @param {(ns: number) => number} x @param {number} width @param {Block | null} marked */
function paintBlocks(draw, blocks, top, height, x, width, marked) {
  /** @type {number[]} */
  const drawnTo = [];
  for (const block of blocks) {
    const left = x(block.start), right = x(block.end);
    if (right < 0 || left > width) continue;
    // Thousands of kernels share a pixel: one of them is enough.
    if (right < (drawnTo[block.row] ?? -1) && block !== marked) continue;
    drawnTo[block.row] = Math.floor(Math.max(right, left)) + 0.5;
    paintBlock(draw, block, left, Math.max(right, left + 1), top + block.row * height, height - 2);
  }
  if (marked && blocks.includes(marked)) {
    draw.strokeStyle = colour("ink");
    draw.lineWidth = 2;
    const left = x(marked.start);
    draw.strokeRect(left, top + marked.row * height, Math.max(x(marked.end) - left, 2), height - 2);
  }
}

/** @param {CanvasRenderingContext2D} draw @param {Block} block @param {number} left @param {number} right
 * @param {number} top @param {number} height */
function paintBlock(draw, block, left, right, top, height) {
  const compute = block.lane === "compute";
  const tone = compute && block.phase !== "other" ? `compute-${block.phase}` : block.lane;
  draw.fillStyle = colour(tone);
  if (block.open) draw.globalAlpha = 0.5;
  // A hair of paper between neighbours, where there is room for it.
  draw.fillRect(left, top, right - left > 3 ? right - left - 0.5 : right - left, height);
  draw.globalAlpha = 1;
  const from = Math.max(left, 0) + 4;
  const room = right - from - 4;
  if (room < 14) return;
  const text = block.open ? `${block.label} (not finished)` : block.label;
  let cut = text;
  if (draw.measureText(cut).width > room) {
    cut = cut.slice(0, Math.floor((cut.length * room) / draw.measureText(cut).width));
    if (cut.length < Math.min(3, text.length)) return;
    if (cut.length < text.length) cut = `${cut.slice(0, -1)}…`;
  }
  draw.fillStyle = colour(compute ? "on-compute" : "on-communication");
  draw.fillText(cut, from, top + height / 2 + 0.5);
}

/** @param {CanvasRenderingContext2D} draw @param {Block} block @param {number} top
 * @param {(ns: number) => number} x @param {number} width */
function paintWhisker(draw, block, top, x, width) {
  const first = block.ready ?? block.launch;
  if (first === null || first >= block.start) return;
  const left = x(first), right = x(block.start);
  if (right < 0 || left > width || right - left < 2) return;
  const middle = Math.round(top + block.row * COMMUNICATION_HEIGHT + COMMUNICATION_HEIGHT / 2 - 1) + 0.5;
  const launched = x(block.launch ?? block.start);
  draw.strokeStyle = colour("whisker");
  draw.lineWidth = 1;
  draw.beginPath();
  draw.moveTo(left, middle - 3);
  draw.lineTo(left, middle + 3);
  draw.moveTo(launched, middle);
  draw.lineTo(right, middle);
  draw.stroke();
  draw.setLineDash([2, 2]);
  draw.beginPath();
  draw.moveTo(left, middle);
  draw.lineTo(launched, middle);
  draw.stroke();
  draw.setLineDash([]);
}

/** @param {CanvasRenderingContext2D} draw @param {RankLanes} rank @param {Place} place @param {(ns: number) => number} x */
function paintEdges(draw, rank, place, x) {
  draw.strokeStyle = colour("quiet");
  draw.lineWidth = 1;
  for (const moment of [rank.data.start, rank.data.end]) {
    const at = Math.round(x(moment)) + (moment === rank.data.end ? -0.5 : 0.5);
    draw.beginPath();
    draw.moveTo(at, place.compute - 3);
    draw.lineTo(at, place.bottom + 3);
    draw.stroke();
  }
  if (!rank.data.tail_ns) return;
  const { last_compute_end_ns: from, last_reduce_end_ns: to } = rank.data.marks;
  const text = `tail ${ms(rank.data.tail_ns)} ms`;
  if (from === null || to === null || x(to) - x(from) < draw.measureText(text).width + 6) return;
  draw.fillStyle = colour("ink");
  draw.fillText(text, x(from) + 4, place.compute + 7);
}

/** The block at a point of the canvas, or the nearest one in its row within 3 pixels.
 * @param {Step} step @param {View} view @param {{places: Place[], gutter: number, width: number}} drawn
 * @param {number} left @param {number} top @returns {Block | null} */
function blockAt(step, view, drawn, left, top) {
  const perPixel = (view.to - view.from) / (drawn.width - drawn.gutter);
  const moment = view.from + (left - drawn.gutter) * perPixel;
  const near = 3 * perPixel;
  for (const place of drawn.places) {
    if (top < place.compute || top > place.bottom) continue;
    const rank = step.ranks[place.rank];
    const upper = top < place.communication;
    const row = upper ? Math.floor((top - place.compute) / COMPUTE_HEIGHT)
      : Math.min(Math.floor((top - place.communication) / COMMUNICATION_HEIGHT), rank.communicationRows - 1);
    let best = null, distance = near;
    for (const block of upper ? rank.compute : rank.communication) {
      if (block.row !== row) continue;
      const off = moment < block.start ? block.start - moment : Math.max(0, moment - block.end);
      if (off < distance || (off === 0 && distance === 0)) {
        best = block;
        distance = off;
      }
    }
    return best;
  }
  return null;
}
