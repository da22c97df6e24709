"""`vllm serve` with the weight transfer of tcp_transfer.py. What the server spawns runs the head of this file too."""

import runpy

import tcp_transfer

tcp_transfer.register_workers_end()

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.launchers.api_server.entry", run_name="__main__")
