// The what-if's arithmetic: pure functions on integer ns, no page.
//
// In: blocks of compute, what is sent when, and what is to be changed. Out: where everything runs and what stays exposed.
// It repeats, for a page that works offline, what overlapwatch/whatif computes (engines, bucketing, cost); a test runs
// both on the same random cases and wants the same integers. All numbers stay below 2^53; products that would not are
// taken in BigInt.

const enginesMiB = 1048576;

// Round half to even, as numpy does.
function enginesRint(value) {
  const low = Math.floor(value);
  const rest = value - low;
  if (rest !== 0.5) return Math.round(value);
  return low % 2 === 0 ? low : low + 1;
}

// value × numerator / denominator, rounded half up: exact for non-negative integers.
function enginesScaled(value, numerator, denominator) {
  if (numerator === denominator) return value;
  const product = value * numerator;
  if (product < 2 ** 51) return Math.floor((2 * product + denominator) / (2 * denominator));
  const [a, b, c] = [BigInt(value), BigInt(numerator), BigInt(denominator)];
  return Number((2n * a * b + c) / (2n * c));
}

// When each of several jobs starts and finishes on one engine that serves them in order.
function enginesQueue(launch, service) {
  const start = [];
  const finish = [];
  let free = -Infinity;
  launch.forEach((at, i) => {
    start.push(Math.max(at, free));
    free = start[i] + service[i];
    finish.push(free);
  });
  return { start, finish };
}

// How many ns of each span lie in `others`; both sorted and free of overlap, as blocks on one engine are.
function enginesCover(start, end, otherStart, otherEnd) {
  let first = 0;
  return start.map((low, i) => {
    while (first < otherStart.length && otherEnd[first] <= low) first += 1;
    let inside = 0;
    for (let j = first; j < otherStart.length && otherStart[j] < end[i]; j += 1) {
      inside += Math.max(0, Math.min(end[i], otherEnd[j]) - Math.max(low, otherStart[j]));
    }
    return inside;
  });
}

// The sums of two engines: as `TwoEngines` in overlapwatch/whatif/engines.py.
function enginesSums(computeStart, computeEnd, start, finish) {
  const covered = enginesCover(start, finish, computeStart, computeEnd);
  const communication = start.reduce((sum, at, i) => sum + finish[i] - at, 0);
  const hidden = covered.reduce((sum, ns) => sum + ns, 0);
  const last = computeEnd[computeEnd.length - 1];
  const total = Math.max(last, finish.length ? finish[finish.length - 1] : last);
  return {
    compute_end_ns: last,
    serial_ns: last + communication,
    communication_ns: communication,
    total_ns: total,
    tail_ns: total - last,
    hidden_ns: hidden,
    exposed_ns: communication - hidden,
    covered_ns: covered,
  };
}

// The limits that DDP uses for a cap in MiB; null for its default.
function enginesLimits(capMb) {
  return capMb === null ? [enginesMiB, 25 * enginesMiB] : [Math.trunc(capMb * enginesMiB)];
}

// Which parameters share a bucket: DDP's rule, as in overlapwatch/whatif/bucketing.py.
function enginesAssign(sizes, limits, types) {
  const open = new Map();
  const closed = new Map();
  const buckets = [];
  sizes.forEach((size, index) => {
    const type = types[index];
    const mine = open.get(type) ?? { members: [], bytes: 0 };
    open.set(type, mine);
    mine.members.push(index);
    mine.bytes += size;
    const before = closed.get(type) ?? 0;
    if (mine.bytes >= limits[Math.min(before, limits.length - 1)]) {
      buckets.push(mine.members);
      open.delete(type);
      closed.set(type, before + 1);
    }
  });
  return [...buckets, ...[...open.values()].map((mine) => mine.members)];
}

// When each bucket and all before it are complete.
function enginesComplete(ready, members) {
  let latest = -Infinity;
  return members.map((bucket) => {
    for (const index of bucket) latest = Math.max(latest, ready[index]);
    return latest;
  });
}

// What collectives of these sizes take: latency + time a byte.
function enginesCost(cost, sizes) {
  return sizes.map((size) => enginesRint((cost.latency_ns ?? 0) + cost.ns_per_byte * size));
}

// What each segment computes once its block takes what `change` says: each keeps its share.
//
// A block of 10 in segments of 6, 0 and 4 that now takes 5: 3, 0 and 2. One that computed nothing computes at its end.
function enginesSegments(step, change) {
  const now = [];
  step.segments.forEach((count, block) => {
    const mine = step.compute_ns.slice(now.length, now.length + count);
    const before = mine.reduce((sum, ns) => sum + ns, 0);
    const after = enginesScaled(change.compute.get(block) ?? before, change.compute_permille, 1000);
    let done = 0;
    let placed = 0;
    mine.forEach((ns, i) => {
      done += ns;
      const until = before ? enginesScaled(done, after, before) : i === count - 1 ? after : 0;
      now.push(until - placed);
      placed = until;
    });
  });
  return now;
}

// Segments of compute one after another, each behind the time in which it stood still; and where a recorded moment goes.
//
// In: the recorded still and compute times of each segment, what each takes now. A moment inside a segment moves with its
// compute; one beyond the last segment (a later rank's) keeps its distance.
function enginesPlace(still, compute, now) {
  const oldEnd = [];
  const start = [];
  const end = [];
  let old = 0;
  let at = 0;
  still.forEach((wait, i) => {
    old += wait + compute[i];
    oldEnd.push(old);
    start.push(at + wait);
    at += wait + now[i];
    end.push(at);
  });
  function moved(moment) {
    let [low, high] = [0, oldEnd.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (oldEnd[middle] < moment) low = middle + 1;
      else high = middle;
    }
    if (low === oldEnd.length) return at + moment - old;
    if (oldEnd[low] === moment) return end[low];
    const into = moment - (oldEnd[low] - compute[low]);
    return into <= 0 ? start[low] + into : start[low] + enginesScaled(into, now[low], compute[low]);
  }
  return { start, end, oldEnd, moved };
}

// Where the segments, the buckets and the gradients of a step lie under a change of compute. A bucket that was complete
// where its own block ended is so still.
function enginesMoved(step, run, change) {
  const { start, end, oldEnd, moved } = enginesPlace(step.still_ns, step.compute_ns, enginesSegments(step, change));
  let last = -1;
  const lasts = step.segments.map((count) => { last += count; return last; });
  const ready = step.ready_ns.map((at, i) => {
    const mine = lasts[run.block_of[i]];
    return at === oldEnd[mine] ? end[mine] : moved(at);
  });
  return { start, end, ready, gradients: step.gradients_ns?.map(moved) ?? null };
}

// One step under a change.
//
// step: still_ns, compute_ns (segments), segments (of each block); ready_ns, delay_ns, service_ns (one each bucket, in launch order); gradients_ns
//   (one each parameter, or null); recorded {step_ns, total_ns}.
// run: buckets [{bytes}], block_of (each bucket); layout {sizes, types, launch_delay_ns} or null.
// change: compute_permille, communication_permille; compute, communication (Maps from block or bucket to ns, before the
//   scale); cost {latency_ns, ns_per_byte} or null for measured times; limits (bytes) or null for the recorded buckets.
// at, members: what `enginesMoved` and `enginesAssign` give for them, where that is known already.
function enginesStep(step, run, change, at = enginesMoved(step, run, change), members = null) {
  let bytes = run.buckets.map((bucket) => bucket.bytes);
  let ready;
  let launch;
  let service;
  if (change.limits === null) {
    ready = at.ready;
    launch = ready.map((ns, i) => ns + step.delay_ns[i]);
    const taken = change.cost === null ? step.service_ns : enginesCost(change.cost, bytes);
    service = taken.map((ns, i) => change.communication.get(i) ?? ns);
  } else {
    const { sizes, types, launch_delay_ns: delay } = run.layout;
    members ??= enginesAssign(sizes, change.limits, types);
    bytes = members.map((bucket) => bucket.reduce((sum, index) => sum + sizes[index], 0));
    ready = enginesComplete(at.gradients, members);
    launch = ready.map((ns) => ns + delay);
    service = enginesCost(change.cost, bytes);
  }
  service = service.map((ns) => enginesScaled(ns, change.communication_permille, 1000));
  const { start, finish } = enginesQueue(launch, service);
  const sums = enginesSums(at.start, at.end, start, finish);
  return {
    ...sums,
    step_ns: step.recorded.step_ns + sums.total_ns - step.recorded.total_ns,
    compute_start: at.start,
    compute_end: at.end,
    ready,
    launch,
    start,
    finish,
    bytes,
    members,
  };
}

// The middle of several integers, as `int(numpy.median(...))`.
function enginesMedian(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : Math.trunc((sorted[half - 1] + sorted[half]) / 2);
}

// By how much throughput would rise if nothing were exposed: T / (T - R) - 1. null where all of the step is exposed.
function enginesCeiling(stepNs, exposedNs) {
  return stepNs > exposedNs ? stepNs / (stepNs - exposedNs) - 1 : null;
}
