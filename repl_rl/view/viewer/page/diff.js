// Which rows two transcripts share: the longest common subsequence, by dynamic programming over what is left between a
// common beginning and a common end. Pure.
(() => {
  "use strict";
  const view = window.ReplView;

  const common = (a, b, from) => {
    let count = 0;
    while (count < Math.min(a.length, b.length) && a[from(a, count)] === b[from(b, count)]) count += 1;
    return count;
  };

  // lengths[i * width + j]: the longest common subsequence of a from i and b from j.
  const table = (a, b) => {
    const width = b.length + 1;
    const lengths = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i -= 1)
      for (let j = b.length - 1; j >= 0; j -= 1)
        lengths[i * width + j] = a[i] === b[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    return lengths;
  };

  const middle = (a, b) => {
    const lengths = table(a, b);
    const width = b.length + 1;
    const steps = [];
    let [i, j] = [0, 0];
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) steps.push(["=", i++, j++]);
      else if (j >= b.length || (i < a.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) steps.push(["−", i++, null]);
      else steps.push(["+", null, j++]);
    }
    return steps;
  };

  // Triples of sign, index in `a` and index in `b`; an index is null where the row stands on the other side only.
  const rows = (a, b) => {
    const head = common(a, b, (list, count) => count);
    const [restA, restB] = [a.slice(head), b.slice(head)];
    const tail = common(restA, restB, (list, count) => list.length - 1 - count);
    const shift = (index) => (index === null ? null : index + head);
    const same = (count, firstA, firstB) => Array.from({ length: count }, (_, index) => ["=", firstA + index, firstB + index]);
    const inner = middle(restA.slice(0, restA.length - tail), restB.slice(0, restB.length - tail)).map(([sign, i, j]) => [sign, shift(i), shift(j)]);
    return [...same(head, 0, 0), ...inner, ...same(tail, a.length - tail, b.length - tail)];
  };

  // Removed and added rows that follow each other share a line of the two columns.
  const paired = (steps) => {
    const pairs = [];
    let [left, right] = [[], []];
    const flush = () => {
      for (let index = 0; index < Math.max(left.length, right.length); index += 1) pairs.push([left[index] ?? null, right[index] ?? null, false]);
      [left, right] = [[], []];
    };
    for (const [sign, i, j] of steps) {
      if (sign === "−") left.push(i);
      else if (sign === "+") right.push(j);
      else { flush(); pairs.push([i, j, true]); }
    }
    flush();
    return pairs;
  };

  view.diff = { rows, paired };
})();
