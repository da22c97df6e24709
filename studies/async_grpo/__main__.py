import sys

from studies.async_grpo import study
from studies.common.command import main

if __name__ == "__main__":
    sys.exit(main(study, "studies.async_grpo"))
