import sys

from studies.common.command import main
from studies.credit_noise import study

if __name__ == "__main__":
    sys.exit(main(study, "studies.credit_noise"))
