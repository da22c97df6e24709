"""The run viewer: an index of a run's trajectories, and a page that asks it.

`record` reads one stored trajectory, `database` and `indexer` keep an SQLite index of all of them, `queries` asks it,
`source` gives the page its answers, `server` serves them on this machine, and `export` writes them into one file. What
the page looks like is in `page/`.

Nothing here is imported before somebody views a run, and nothing imports torch, vLLM or Jupyter. The indexer runs in a
process of its own and loads neither the configuration nor the server.
"""
