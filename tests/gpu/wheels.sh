# Sourced: sets `wheels`, where the Python wheels have the compiler library that may be no system library.
wheels=$(python3 -c "import nvidia, os; print(':'.join(os.path.join(p, d, 'lib') for p in nvidia.__path__ for d in os.listdir(p)))" 2>/dev/null || true)
