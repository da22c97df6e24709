import sys

from studies.common.command import main
from studies.prices import study

if __name__ == "__main__":
    sys.exit(main(study, "studies.prices"))
