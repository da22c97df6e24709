"""Check 4: how fast weights leave the GPU for files, as a trainer hands them to servers.

`safetensors` writes 2 GB of bfloat16 from the GPU, in tensors of 64 MB, to /tmp and /dev/shm; then they are read back
to the GPU. The last record is a copy on the device, as for vLLM in the same process.
"""

import os
import time

import torch
from common import TINY, attempt, device, record, wait
from safetensors.torch import load_file, save_file

TENSORS, BYTES = (4, 1 << 20) if TINY else (32, 64 << 20)


def main() -> None:
    weights = {f"w{n}": torch.randn(BYTES // 2, device=device()).to(torch.bfloat16) for n in range(TENSORS)}
    total = TENSORS * BYTES / 1e9
    wait()
    began = time.perf_counter()
    host = {name: weight.cpu() for name, weight in weights.items()}
    record(4, "to the CPU, pageable", gb=total, gb_per_s=total / (time.perf_counter() - began))

    def written(folder: str) -> None:
        path = os.path.join(folder, "weights-of-check-4.safetensors")
        try:
            began = time.perf_counter()
            save_file(weights, path)
            write_s = time.perf_counter() - began
            began = time.perf_counter()
            save_file(host, path)
            host_s = time.perf_counter() - began
            began = time.perf_counter()
            found = load_file(path, device=device())
            wait()
            read_s = time.perf_counter() - began
            same = all(torch.equal(found[name], weight) for name, weight in weights.items())
            record(
                4,
                f"to {folder}",
                gb=total,
                gb_per_s=total / write_s,
                gb_per_s_from_cpu=total / host_s,
                read_gb_per_s=total / read_s,
                same=same,
            )
        finally:
            if os.path.exists(path):
                os.unlink(path)

    for folder in ("/dev/shm", "/tmp"):
        attempt(4, f"to {folder}", lambda folder=folder: written(folder))

    def copied() -> None:
        wait()
        began = time.perf_counter()
        copies = [weight.clone() for weight in weights.values()]
        wait()
        record(4, "on the device", gb=total, gb_per_s=total / (time.perf_counter() - began), tensors=len(copies))

    attempt(4, "on the device", copied)


if __name__ == "__main__":
    main()
