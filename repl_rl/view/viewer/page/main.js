// Brings head, curves, table and pane together: draws what the address says, and asks a running run for what is new.
(() => {
  "use strict";
  const view = window.ReplView;
  const { at } = view;
  const POLL_S = 2;
  const SLOWEST_S = 30;
  const TABLE = ["sort", "order", "page", ...view.state.FILTERS];

  let source = null;
  let run = null;
  let request = new AbortController();
  let timer = 0;
  let wait_s = POLL_S;

  const fillTable = async () => {
    request.abort();
    request = new AbortController();
    const { signal } = request;
    view.table.busy(true);
    try {
      const answer = await source.rows(view.state.query(view.state.now), signal);
      if (signal.aborted) return;
      view.table.draw(answer, run);
      view.pane.edges();
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      view.table.problem(`The table can't be shown: ${error.message}.`);
    }
    view.table.busy(false);
  };

  // Following means: the step's filter is the newest step of the run.
  const follow = () => {
    const { follow: on, step } = view.state.now;
    const newest = run.choices.steps ? String(run.choices.steps[1]) : "";
    if (!on || step === newest) return false;
    view.state.go({ step: newest, page: "1" }, { replace: true });
    return true;
  };

  const drawFollow = () => {
    at("follow").hidden = source.embedded;
    at("follow").setAttribute("aria-pressed", String(Boolean(view.state.now.follow)));
  };

  const took = (next) => {
    const isFirst = !run;
    const isNew = isFirst || run.revision !== next.revision;
    run = next;
    view.head.live(run, source.embedded);
    if (!isNew) return;
    view.compared.draw(run);
    view.head.draw(run);
    view.charts.draw(run);
    view.filters.draw(run.choices);
    if (!follow()) fillTable().then(() => isFirst || view.pane.refresh());
  };

  const poll = async () => {
    clearTimeout(timer);
    if (document.visibilityState === "visible") {
      try {
        took(await source.run());
        wait_s = POLL_S;
      } catch (error) {
        if (error.gone === undefined) throw error;
        wait_s = Math.min(SLOWEST_S, 2 * wait_s);
        view.head.lost(error.message, wait_s);
      }
    }
    if (!source.embedded) timer = setTimeout(poll, 1000 * wait_s);
  };

  const changed = (state, before) => {
    if (!run) return view.pane.show(state, before);
    if (follow()) return undefined;
    view.filters.draw(run.choices);
    drawFollow();
    if (view.state.changed(state, before, ["curves"])) view.charts.draw(run);
    if (view.state.changed(state, before, TABLE)) fillTable();
    else view.table.relink();
    return view.pane.show(state, before);
  };

  const start = async () => {
    view.state.start();
    source = view.source();
    view.filters.build();
    view.table.build();
    view.pane.build(source);
    view.keys.build();
    at("follow").addEventListener("click", () => view.state.go(view.state.now.follow ? { follow: "" } : { follow: "1" }));
    view.state.subscribe(changed);
    window.addEventListener("hashchange", view.filters.sync);
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && !source.embedded && poll());
    drawFollow();
    view.pane.show(view.state.now, view.state.now, true);
    await poll();
  };

  document.addEventListener("DOMContentLoaded", start);
})();
