import sys

from studies.common.command import main
from studies.trl_tools import study

if __name__ == "__main__":
    sys.exit(main(study, "studies.trl_tools"))
