#!/usr/bin/env bash
# Runs every target for a while, then minimises its corpus.  ./run.sh [SECONDS] [TARGET…]
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-60}
shift || true
targets=${*:-$(cargo +nightly fuzz list)}
for target in $targets; do
  echo "── $target, $seconds s"
  mkdir -p "corpus/$target"
  cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -max_len=65536 -print_final_stats=1 2>&1 |
    grep -E "stat::number_of_executed_units|stat::new_units_added|SUMMARY|panicked|cov:" | tail -4
  cargo +nightly fuzz cmin "$target" > /dev/null 2>&1
  echo "corpus: $(ls "corpus/$target" | wc -l) files"
done
