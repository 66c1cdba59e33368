#!/usr/bin/env bash
# Runs every target for a while, then adds to its corpus what covers more.  ./run.sh [SECONDS] [TARGET…]
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-60}
shift || true
targets=${*:-$(cargo +nightly fuzz list)}
limits=(-rss_limit_mb=2048 -timeout=10 -max_len=65536)
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
for target in $targets; do
  echo "── $target, $seconds s"
  mkdir -p "corpus/$target" "$found/$target"
  cargo +nightly fuzz run "$target" "$found/$target" "corpus/$target" -- \
    -max_total_time="$seconds" "${limits[@]}" -print_final_stats=1 2>&1 |
    grep -E "stat::number_of_executed_units|stat::new_units_added|SUMMARY|panicked|cov:" | tail -4
  # Only small files, and only as many as it takes: the corpus lies in the repository.
  find "$found/$target" -type f -size +2048c -delete
  cargo +nightly fuzz run "$target" "corpus/$target" "$found/$target" -- \
    -set_cover_merge=1 -use_counters=0 "${limits[@]}" > /dev/null 2>&1
  echo "corpus: $(ls "corpus/$target" | wc -l) files"
done
