import sys

from studies.cold_start import study
from studies.common.command import main

if __name__ == "__main__":
    sys.exit(main(study, "studies.cold_start"))
