import sys

from studies.common.command import main
from studies.eight_gpus import study

if __name__ == "__main__":
    sys.exit(main(study, "studies.eight_gpus"))
