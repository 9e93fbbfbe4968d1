#!/bin/sh
# Write requirements/*.txt: the versions of constraints.txt with the SHA-256 of each file that the index has of them.
# Run it after a change of constraints.txt or of the dependencies in pyproject.toml. It needs uv.
#
#   run.txt     what seatrial runs with             build.txt   what builds it
#   mpi.txt     what the image `mpi` adds           dev.txt     what checks and tests
#   torch.txt   what torch needs; torch itself comes from an index for the hardware, so it has a version and no hash
set -eu
cd "$(dirname "$0")/.."
compile() {
  file=$1
  shift
  uv pip compile -q --universal --generate-hashes --no-header --no-annotate --allow-unsafe -c constraints.txt "$@" \
    --python-version "$python" -o "$file.new"
  { echo "# tools/write_requirements.sh writes this file."; cat "$file.new"; } > "$file"
  rm "$file.new"
}
names() { printf '%s\n' "$@"; }
python=3.10
names click junitparser PyYAML rich 'tomli; python_version < "3.11"' | compile requirements/run.txt -
names pip hatchling editables | compile requirements/build.txt -
names mpi4py | compile requirements/mpi.txt -
names filelock fsspec Jinja2 MarkupSafe mpmath networkx setuptools sympy typing_extensions | compile requirements/torch.txt -
python=3.11
compile requirements/dev.txt --group dev
