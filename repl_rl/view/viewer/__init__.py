"""The run viewer: an index of a run's trajectories, and a page that queries it.

`indexer` keeps the SQLite `index` of all trajectories up to date and `queries` reads it. `api` answers the page's
requests; `transcript` prepares a single trajectory for it. `server` serves page and answers on this machine; `export`
writes both into one file, and also makes `report.html`. The page itself is in `page/`.

Nothing here imports torch, vLLM or Jupyter.
"""
