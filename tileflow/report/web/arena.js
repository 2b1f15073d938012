// Addresses on any tile, as tiles/placing/addresses.py finds those of the fullest: what is always there at the bottom, above it the rest as arena.py
// places it, the largest first, each as low as nothing is that lives at the same time.

// Ranges looked at for each block, on average.
const ARENA_STEPS = 200;
const padded = (bytes, align) => Math.ceil(bytes / align) * align;

// The first of ascending numbers that is greater than v (or, with `equal`, not less).
function firstAbove(numbers, v, equal) {
  let a = 0,
    b = numbers.length;
  while (a < b) {
    const m = (a + b) >> 1;
    if (numbers[m] > v || (equal && numbers[m] === v)) b = m;
    else a = m + 1;
  }
  return a;
}

// Bytes taken: disjoint ranges in order, neighbours joined.
class Ranges {
  starts = [];
  ends = [];

  // The end of the first range in the way of `need` bytes from `at` on, or `at` where none is.
  beyond(at, need) {
    const i = firstAbove(this.ends, at);
    return i < this.ends.length && this.starts[i] < at + need ? this.ends[i] : at;
  }

  // Take a range; false where it was taken already.
  add(start, end) {
    const i = firstAbove(this.ends, start, true),
      j = firstAbove(this.starts, end);
    if (i < j) {
      if (j === i + 1 && this.starts[i] <= start && end <= this.ends[i]) return false;
      start = Math.min(start, this.starts[i]);
      end = Math.max(end, this.ends[j - 1]);
    }
    this.starts.splice(i, j - i, start);
    this.ends.splice(i, j - i, end);
    return true;
  }
}

// Which bytes are taken during which steps: a segment tree over the steps. whole: throughout a place's steps; any: in some of them.
class Taken {
  whole = new Map();
  any = new Map();

  constructor(rows, steps) {
    this.leaves = 1;
    while (this.leaves < rows) this.leaves *= 2;
    this.steps = steps;
  }
  cover(first, last) {
    const found = [];
    for (let low = first + this.leaves, high = last + this.leaves + 1; low < high; low >>= 1, high >>= 1) {
      if (low & 1) found.push(low++);
      if (high & 1) found.push(--high);
    }
    return found;
  }
  lowest(first, last, need, at) {
    const present = this.cover(first, last).map(place => this.any.get(place));
    for (let low = first + this.leaves, high = last + this.leaves; low || high; low >>= 1, high >>= 1) {
      present.push(this.whole.get(low));
      if (high !== low) present.push(this.whole.get(high));
    }
    const found = present.filter(Boolean);
    let before = -1;
    while (before < at && this.steps >= 0) {
      before = at;
      this.steps -= found.length;
      for (const ranges of found) at = ranges.beyond(at, need);
    }
    return at === before ? at : Math.max(at, ...found.map(ranges => ranges.ends[ranges.ends.length - 1]));
  }
  add(first, last, start, end) {
    const at = (map, place) => map.get(place) || map.set(place, new Ranges()).get(place);
    for (let place of this.cover(first, last)) {
      at(this.whole, place).add(start, end);
      while (place && at(this.any, place).add(start, end)) place >>= 1;
    }
  }
}

// Blocks that have one place, one after the other: { kind, bytes, parts: [variable or -1, first step, last step] }.
function movingOn(one, tile) {
  const r = the(),
    v = r.variables,
    activations = r.memory.kinds.findIndex(k => k.name === "activations"),
    mine = i => one.number < 0 || v.ipu[i] === one.number;
  const bytes = onTileOf(tile),
    stays = [];
  for (let i = 0; i < v.name.length; i++)
    if (v.birth[i] >= 0 && mine(i)) for (let k = 0; k < v.stays[i].length; k += 2) stays.push([v.stays[i][k], v.stays[i][k + 1], i]);
  stays.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const found = [],
    handed = new Map();
  for (const [first, last, i] of stays) {
    const held = bytes(i);
    if (!held) continue;
    const dies = v.heir[i] >= 0 && last === v.death[i], // it does not count in the step in which its memory goes on
      key = `${i} ${first}`;
    let together = handed.get(key);
    if (together) handed.delete(key);
    else found.push((together = { kind: activations, bytes: held, parts: [] }));
    together.parts.push([i, first, dies ? last - 1 : last]);
    if (dies && bytes(v.heir[i]) === held) handed.set(`${v.heir[i]} ${last}`, together);
  }
  const s = r.steps,
    on = new Map();
  for (let k = 0; k < s.name.length; k++) {
    if (one.number >= 0 && s.ipu[k] !== one.number) continue;
    if (!on.has(s.on[k])) on.set(s.on[k], elementsAt(r.spreads[s.on[k]], tile));
    if (on.get(s.on[k]))
      for (const [kind, needs] of s.needs) if (needs[k]) found.push({ kind, bytes: needs[k], parts: [[-1, k, k]] });
  }
  return found;
}

// The layout of a tile, as columns: { ipu, tile, extent, start, bytes, kind, variable, first, last }; of no variable, and always there: -1.
function layOut(one, tile) {
  const r = the(),
    v = r.variables,
    align = r.align,
    bytes = onTileOf(tile),
    blocks = [],
    code = r.memory.kinds.findIndex(k => k.name === "code");
  let at = code < 0 ? 0 : one.categories[code][tile];
  if (at) blocks.push([0, at, code, -1, -1, -1]);
  at = padded(at, align);
  r.memory.kinds.forEach((kind, c) => {
    if (!kind.always || c === code) return;
    for (let i = 0; i < v.name.length; i++) {
      if (v.birth[i] >= 0 || texts(v.kind[i]) !== kind.name || (one.number >= 0 && v.ipu[i] !== one.number)) continue;
      const held = bytes(i);
      if (!held) continue;
      blocks.push([at, held, c, i, -1, -1]);
      at += padded(held, align);
    }
  });
  const moving = movingOn(one, tile),
    base = at,
    first = together => together.parts[0][1],
    last = together => together.parts[together.parts.length - 1][2];
  const taken = new Taken(1 + largest(moving.map(last)), ARENA_STEPS * (moving.length + 5000));
  let extent = base;
  for (const together of [...moving].sort((a, b) => b.bytes - a.bytes || first(a) - first(b))) {
    const need = padded(together.bytes, align),
      place = taken.lowest(first(together), last(together), need, base);
    taken.add(first(together), last(together), place, place + need);
    extent = Math.max(extent, place + need);
    for (const [variable, from, to] of together.parts) blocks.push([place, together.bytes, together.kind, variable, from, to]);
  }
  blocks.sort((a, b) => a[0] - b[0] || a[4] - b[4]);
  const column = k => blocks.map(block => block[k]);
  return {
    ipu: one.number,
    tile,
    extent,
    start: column(0),
    bytes: column(1),
    kind: column(2),
    variable: column(3),
    first: column(4),
    last: column(5),
  };
}

// Blocks of a tile beyond which its layout is found only when somebody asks for it: some microseconds each.
const MANY_BLOCKS = 30000;
const LAID = new Map();
// The layout of a tile, kept; undefined where nothing runs, or where it would take long and nobody asked.
function layoutOf(one, tile, asked) {
  const r = the();
  if (!canLayOut()) return undefined;
  const key = `${state.report} ${one.number} ${tile}`;
  if (!LAID.has(key) && (asked || r.variables.name.length + r.steps.name.length < MANY_BLOCKS)) LAID.set(key, layOut(one, tile));
  return LAID.get(key);
}
const canLayOut = () => the().steps.on.length > 0;
