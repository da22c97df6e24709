// Filters and order of the table for an exported file, which has no server to ask. Pure.
(() => {
  "use strict";
  const view = window.ReplView;

  const EQUAL = { run: "run", model: "model", dialect: "dialect", split: "split", family: "family", status: "status", stop: "stop_reason", task: "task_id", other_sign: "other_sign" };

  const span = (text) => {
    const found = /^(\d+)(?:-(\d+))?$/.exec(text.trim());
    if (!found) throw new Error(`step ${view.visible(text)} is neither a step like 12 nor a range like 3-20`);
    return [Number(found[1]), Number(found[2] ?? found[1])];
  };

  const bound = (name, text) => {
    const value = text === undefined ? null : Number(text);
    if (Number.isNaN(value)) throw new Error(`${view.words(name)} ${view.visible(text)} is not a number`);
    return value;
  };

  // A function from a row to whether it belongs in the table.
  const matcher = (query, questionOf) => {
    const steps = query.step === undefined ? null : span(query.step);
    const lowest = bound("min_reward", query.min_reward);
    const highest = bound("max_reward", query.max_reward);
    const part = (query.q || "").toLowerCase();
    return (row) =>
      Object.entries(EQUAL).every(([name, key]) => query[name] === undefined || row[key] === query[name]) &&
      (steps === null || (row.step >= steps[0] && row.step <= steps[1])) &&
      (query.error === undefined || row.errors.includes(query.error)) &&
      (lowest === null || (row.reward !== null && row.reward >= lowest)) &&
      (highest === null || (row.reward !== null && row.reward <= highest)) &&
      (!part || row.task_id.toLowerCase().includes(part) || questionOf(row.id).toLowerCase().includes(part));
  };

  const worth = (row, key) => (key === "errors" ? row.errors.length : row[key]);
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const inRun = (a, b) => a.step - b.step || compare(a.split, b.split) || a.position - b.position;

  // The newest step first, its rollouts in the order of their file.
  const newest = (a, b) => b.step - a.step || compare(b.split, a.split) || a.position - b.position;

  // Rows without the number come last in both orders; equal ones stand as in the run.
  const comparer = (key, order) => {
    const sign = order === "desc" ? -1 : 1;
    if (key === "step") return sign < 0 ? newest : inRun;
    return (one, other) => {
      const [a, b] = [worth(one, key), worth(other, key)];
      return (a === null) - (b === null) || sign * (compare(a, b) || inRun(one, other));
    };
  };

  view.query = {
    run: (rows, query, questionOf) => {
      const chosen = rows.filter(matcher(query, questionOf)).sort(comparer(query.sort, query.order));
      const first = Number(query.offset);
      return { total: chosen.length, rows: chosen.slice(first, first + Number(query.limit)) };
    },
  };
})();
