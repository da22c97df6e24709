import sys

from studies.common.command import main
from studies.host_time import study

if __name__ == "__main__":
    sys.exit(main(study, "studies.host_time"))
