//! Test counts from the output of cargo and pytest.

use std::{fmt, ops::AddAssign};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Count {
    /// The counts in the summary line of Rust's test harness.
    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let (_, counts) = line.split_once("test result: ")?.1.split_once(". ")?;
        let mut count = Self::default();
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse() else { continue };
            match what {
                "passed" => count.passed = number,
                "failed" => count.failed = number,
                "ignored" => count.skipped = number,
                _ => {}
            }
        }
        Some(count)
    }

    /// The counts of a `JUnit` report of pytest.
    pub(crate) fn of_junit(report: &str) -> Option<Self> {
        let (_, suite) = report.split_once("<testsuite ")?;
        let head = suite.split('>').next()?;
        let attribute = |name: &str| -> Option<u64> {
            head.split_once(&format!(" {name}=\""))?.1.split('"').next()?.parse().ok()
        };
        let failed = attribute("failures")? + attribute("errors")?;
        let skipped = attribute("skipped")?;
        let passed = attribute("tests")?.saturating_sub(failed + skipped);
        Some(Self { passed, failed, skipped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harness_summary_is_parsed() {
        let count = |passed, failed, skipped| Some(Count { passed, failed, skipped });
        for (line, expected) in [
            (
                "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 7 filtered out; finished in 0.1s",
                count(12, 0, 3),
            ),
            (
                "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
                count(1, 2, 0),
            ),
            ("test tests::harness_summary_is_parsed ... ok", None),
            ("test result: ", None),
        ] {
            assert_eq!(Count::of_line(line), expected, "{line}");
        }
    }

    #[test]
    fn junit_report_is_parsed() {
        let head = r#"<?xml version="1.0"?><testsuites name="x"><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10" time="1.0">"#;
        assert_eq!(Count::of_junit(head), Some(Count { passed: 4, failed: 3, skipped: 3 }));
        assert_eq!(Count::of_junit("<testsuite name=\"pytest\">"), None);
        assert_eq!(Count::of_junit(""), None);
    }

    #[test]
    fn counts_add_up() {
        let mut count = Count { passed: 1, failed: 2, skipped: 3 };
        count += Count { passed: 10, failed: 20, skipped: 30 };
        assert_eq!(count.to_string(), "11 passed, 22 failed, 33 skipped");
    }
}
