import sys

from studies.capacity import study
from studies.common.command import main

if __name__ == "__main__":
    sys.exit(main(study, "studies.capacity"))
