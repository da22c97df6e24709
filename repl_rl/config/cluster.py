"""The cluster section."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from repl_rl.config.section import Names, Section

Amount = Annotated[float, Field(ge=0)]


class ClusterConfig(Section):
    """Rollouts on the machines of a Ray cluster. Without the section, they run on the trainer's machine.
    docs/engines.md"""

    SHORT_FOR: ClassVar[str | None] = "address"

    address: str = "auto"
    """Of the Ray cluster, `host:port`; `auto`: the one that this machine belongs to; `local`: one of this machine
    alone, for the time of the run."""
    workers: int | None = Field(None, ge=1)
    """Processes that run the line loop with kernels of their own; null starts one on each machine."""
    kernels_per_worker: int | None = Field(None, ge=1)
    """Sessions that a worker runs at a time; null is `kernel.size`."""
    resources: dict[str, Amount] = Field(default_factory=lambda: {"CPU": 1.0})
    """What Ray sets aside for each worker. Kernels use the machine's cores beyond that."""
    replicas: int = Field(0, ge=0)
    """`vllm serve` processes to start in the cluster; 0 uses those in `engine.servers`."""
    replica_resources: dict[str, Amount] = Field(default_factory=lambda: {"GPU": 1.0})
    """What Ray sets aside for each of them."""
    replica_arguments: Names = ()
    """Further arguments of `vllm serve`, such as `--tensor-parallel-size=2`."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's runtime environment, which brings packages to machines that don't have them."""

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str) -> str:
        if not address.strip():
            raise ValueError("an empty address; give host:port, auto or local")
        if "://" in address:
            raise ValueError(
                f"{address!r} is for Ray's client, through which tasks and trajectories would go twice; start the run "
                "on a machine of the cluster, with host:port or auto"
            )
        return address

    @model_validator(mode="after")
    def _replicas_are_asked_for(self) -> ClusterConfig:
        if self.replica_arguments and not self.replicas:
            raise ValueError(
                f"replica_arguments {' '.join(self.replica_arguments)} are for servers that the run starts; set "
                "replicas, or give them to your own servers"
            )
        return self
