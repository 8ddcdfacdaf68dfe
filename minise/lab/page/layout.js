// Prompts that begin alike, laid out as branches of a tree of tokens: minise/layout.py.
//
// A Layout is {ids, positions, mask, parents, segments, ends}: of each token its id, its position,
// the row of the token before it in its prompt (-1 for the first), and the number of its group (-1
// for the question; of a tree's token the first group that has it); the T * T mask, 1 = the row's
// token may attend to the column's; and the row of each branch's last token.

// One layout for each prompt prefix + branch. The tokens of branch g have segment g.
export function separate(prefix, branches) {
  return branches.map((branch, g) => grow(prefix, [branch], false, g));
}

// The prefix once, then every branch whole.
export function packed(prefix, branches) {
  return grow(prefix, branches, false);
}

// Every common beginning of two prompts merged.
export function tree(prefix, branches) {
  return grow(prefix, branches, true);
}

function grow(prefix, branches, merge, firstSegment = 0) {
  const layout = { ids: [], positions: [], parents: [], segments: [], ends: [] };
  const children = new Map();
  const append = (row, ids, segment) => {
    for (const id of ids) {
      const key = `${row} ${id}`;
      if (merge && children.has(key)) {
        row = children.get(key);
        continue;
      }
      layout.positions.push(row < 0 ? 0 : layout.positions[row] + 1);
      layout.parents.push(row);
      layout.segments.push(segment);
      row = layout.ids.push(id) - 1;
      children.set(key, row);
    }
    return row;
  };
  const last = append(-1, prefix, -1);
  layout.ends = branches.map((branch, g) => append(last, branch, firstSegment + g));
  if (!branches.length || Math.min(...layout.ends) < 0) throw new Error("an empty prompt");
  let mask = null; // made when asked for: a row of many trials is long, and only its size is shown
  return { ...layout, get mask() { return (mask ??= ancestors(layout.parents)); } };
}

// The mask of a tree: a token attends to its ancestors and itself.
export function ancestors(parents) {
  const T = parents.length;
  const mask = new Uint8Array(T * T);
  parents.forEach((parent, t) => {
    if (parent >= 0) mask.copyWithin(t * T, parent * T, (parent + 1) * T);
    mask[t * T + t] = 1;
  });
  return mask;
}

// The plain causal mask over the row: each group also reads the groups before it.
export function noMask(layout) {
  return { ...layout, mask: ancestors(layout.parents.map((_, t) => t - 1)) };
}

// Positions that run on over the row, in place of the depth in the tree.
export function runOn(layout) {
  return { ...layout, positions: layout.ids.map((_, t) => t) };
}
