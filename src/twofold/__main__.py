"""`python -m twofold` is the same as `twofold`."""

import sys

from twofold.cli.main import main

sys.exit(main())
