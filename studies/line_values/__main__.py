import sys

from studies.common.command import main
from studies.line_values import study

if __name__ == "__main__":
    sys.exit(main(study, "studies.line_values"))
