"""The run viewer: an index of a run's trajectories, and a page that asks it.

`indexer` keeps the SQLite `index` of all trajectories and `queries` asks it. `api` gives the page its answers, one
trajectory as `transcript` shows it. `server` serves page and answers on this machine; `export` writes both into one
file, `report.html` among them. What the page looks like is in `page/`.

Nothing here imports torch, vLLM or Jupyter. The indexer runs in a process of its own and loads neither the
configuration nor the server.
"""
