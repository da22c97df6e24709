// Where the page's data comes from: the server that the page was loaded from, or the data embedded in an exported file.
// Both have the same methods and answers. A failure is an Error whose `gone` says that there was no answer at all.
(() => {
  "use strict";
  const view = window.ReplView;

  const failure = (message, gone, missing = false) => Object.assign(new Error(message), { gone, missing });

  const get = async (path, parameters, signal) => {
    const query = new URLSearchParams(parameters || {}).toString();
    let response, answer;
    try {
      response = await fetch(`api/${path}${query ? `?${query}` : ""}`, { signal, cache: "no-store" });
      answer = await response.json();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw failure(response ? "the server's answer can't be read" : "the server does not answer", !response);
    }
    if (response.ok) return answer;
    throw failure(answer.error || `the server answered ${response.status}`, false, response.status === 404);
  };

  const name = encodeURIComponent;
  const server = {
    embedded: false,
    run: (signal) => get("run", null, signal),
    rows: (query, signal) => get("trajectories", query, signal),
    trajectory: (id, first, count, signal) => get(`trajectory/${name(id)}`, { first, count }, signal),
    tokens: (id, line, signal) => get(`tokens/${name(id)}`, { line }, signal),
    group: (id, signal) => get(`group/${name(id)}`, null, signal),
    task: (id, signal) => get(`task/${name(id)}`, null, signal),
  };

  const embedded = (data) => {
    const whole = (id) => {
      const found = Object.hasOwn(data.trajectories, id) ? data.trajectories[id] : null;
      if (!found) throw failure(`trajectory ${id} is not in this file: only a part of the run was exported`, false, true);
      return found;
    };
    const row = (id) => data.rows.find((other) => other.id === id) || whole(id).row;
    const question = (id) => (Object.hasOwn(data.trajectories, id) ? data.trajectories[id].question : "");
    const alike = (id, keys) => data.rows.filter((other) => keys.every((key) => other[key] === row(id)[key]));
    const ordered = (rows, key) => rows.sort((a, b) => a[key] - b[key] || a.position - b.position);
    return {
      embedded: true,
      run: async () => data.run,
      rows: async (query) => view.query.run(data.rows, query, question),
      trajectory: async (id, first, count) => {
        const found = whole(id);
        return { ...found, screen: found.screen.slice(first, first + count), screen_total: found.screen.length };
      },
      tokens: async (id, line) => {
        const found = data.tokens && Object.hasOwn(data.tokens, id) ? data.tokens[id] : null;
        if (!found) throw failure("this file was exported without tokens", false, true);
        return { tokens: found.tokens.filter((token) => token.line === line) };
      },
      group: async (id) => ({ rows: ordered(alike(id, ["run", "model", "dialect", "split", "step", "task_id"]), "position") }),
      task: async (id) => ({ rows: ordered(alike(id, ["task_id"]), "step") }),
    };
  };

  view.source = () => {
    const element = view.at("run-data");
    return element ? embedded(JSON.parse(element.textContent)) : server;
  };
})();
