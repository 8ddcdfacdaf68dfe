"""packed-vectors ADAPTER.py [DTYPE] [FOLDER] [--json FILE]"""

import sys

from packed_vectors.command import main

sys.exit(main())
