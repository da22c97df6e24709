"""Every exception that repl_rl raises on purpose.

    ReplRLError
    ├── ConfigError          the user's YAML, flags or arguments: fixed by editing them
    │   └── ToolError          a function that can't be given to the model as a tool
    ├── ModelError           a checkpoint or tokenizer that can't be used
    ├── DependencyError      something has to be installed first (vLLM, bwrap, ...)
    ├── ExtensionError       code that a user handed in failed, or returned something else than it should
    │   ├── RewardError        a reward function, a grader or an estimator did
    │   ├── ExtensionConfigError  the same where it is loaded or made; it is a ConfigError, too
    │   ├── ExtensionEngineError  the user's own engine did; it is an EngineError, too
    │   └── EnvironmentFailure see below; it is a KernelError, too
    ├── RunError             a run folder that can't be read or resumed
    ├── OutputError          nothing more can be printed
    ├── EngineError          the inference engine failed or lost a request
    ├── TrainingError        training went wrong in a way that can't be recovered
    └── KernelError          the machinery around an interpreter failed
        ├── KernelStartError   a kernel did not start
        ├── KernelDiedError    a kernel ended between two lines, not because of the code it ran
        ├── ForkRefusedError   a session can't be forked so that the copy is exact
        ├── SandboxError       this machine can't isolate a kernel
        └── EnvironmentFailure the code of the user's environment failed
            └── BrokenStateError in a state that the session had brought about

Code that a model typed never raises here: an exception, a time-out or a kill in the interpreter is an
`ExecResult` with a status. All of these pickle, so they cross process boundaries whole.
"""


class ReplRLError(Exception):
    """Root of the tree; the CLI prints its message without a traceback."""


class ConfigError(ReplRLError, ValueError):
    """A value in a config file, a flag or an argument is unusable."""


class ToolError(ConfigError):
    """A function can't be given to the model as a tool; the message names it and what it lacks."""


class ModelError(ReplRLError):
    """A model path, checkpoint or tokenizer can't be used for line-by-line rollouts."""


class DependencyError(ReplRLError):
    """A package or program that this call needs is missing; the message holds the command that installs it."""


class ExtensionError(ReplRLError):
    """Code that a user handed in raised, or returned something other than what it promised.

    The message names the code, the line and what was expected (`repl_rl.utils.user_code`). What was raised is the
    `__cause__`.
    """


class ExtensionConfigError(ExtensionError, ConfigError):
    """What a config or an argument names failed as it was loaded or made, or made something that can't be used."""


class RewardError(ExtensionError):
    """A reward function, an estimator or a grader failed, or returned something other than what it promised."""


class RunError(ReplRLError):
    """A run folder is missing, half written, or belongs to another configuration."""


class OutputError(ReplRLError):
    """Standard output can't be written, such as on a full disk."""


class EngineError(ReplRLError):
    """The inference engine failed in a way that a retry would not fix."""


class TrainingError(ReplRLError):
    """Training went wrong in a way that continuing would only make worse, such as weights that are not numbers."""


class ExtensionEngineError(ExtensionError, EngineError):
    """The user's own engine raised something else than an EngineError."""


class KernelError(ReplRLError):
    """The machinery around an interpreter failed. Never raised for what the executed code did."""


class KernelStartError(KernelError):
    """A kernel did not start."""


class KernelDiedError(KernelError):
    """A kernel ended while no code was running in it, or its connection broke."""


class ForkRefusedError(KernelError):
    """A session can't be forked so that the copy is exact and apart from it; the message says why. It lives on."""


class SandboxError(KernelError):
    """This machine can't isolate a kernel in the way that was asked for."""


class EnvironmentFailure(KernelError, ExtensionError):
    """The code of a user's environment failed, or did not return what it promised: its trajectory is aborted.

    An environment may raise it itself, at any time, if what it stands on is gone (a server, a browser).
    """


class BrokenStateError(EnvironmentFailure):
    """The environment failed after the session had acted on it. Since a session may bring that about, its trajectory
    counts: as one whose kernel was killed, or without the environment's reward."""
