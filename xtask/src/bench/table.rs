//! Results compared with floors and aims.

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// At most the limit.
    Lower,
    /// At least the limit.
    Higher,
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    /// Empty without a peer.
    pub(crate) peer: String,
    pub(crate) ours: String,
    pub(crate) theirs: String,
    /// Ratio to the peer by round, or the value itself.
    pub(crate) rounds: Vec<f64>,
    /// Unit suffix: `x` for a ratio.
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) floor: Option<f64>,
    pub(crate) aim: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fails,
    Holds,
    Aim,
    Measured,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Fails => "BELOW FLOOR",
            Self::Holds => "floor holds",
            Self::Aim => "aim reached",
            Self::Measured => "below aim",
        }
    }
}

impl Row {
    pub(crate) fn middle(&self) -> f64 {
        median(&self.rounds)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let middle = self.middle();
        let keeps = |limit: f64| match self.better {
            Better::Lower => middle <= limit,
            Better::Higher => middle >= limit,
        };
        match (self.floor, self.aim) {
            (Some(floor), _) if !keeps(floor) => Verdict::Fails,
            (_, Some(aim)) if keeps(aim) => Verdict::Aim,
            (Some(_), _) => Verdict::Holds,
            (None, _) => Verdict::Measured,
        }
    }

    fn limit(&self, limit: Option<f64>) -> String {
        let sign = if self.better == Better::Lower { "≤" } else { "≥" };
        limit.map_or_else(|| "-".into(), |l| format!("{sign} {}{}", figure(l), self.unit))
    }

    fn cells(&self) -> [String; 8] {
        let spread = match (smallest(&self.rounds), largest(&self.rounds)) {
            (least, most) if self.rounds.len() > 1 => format!(" ({}–{})", figure(least), figure(most)),
            _ => String::new(),
        };
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        [
            self.what.clone(),
            or_dash(&self.peer),
            self.ours.clone(),
            or_dash(&self.theirs),
            format!("{}{}{spread}", figure(self.middle()), self.unit),
            self.limit(self.floor),
            self.limit(self.aim),
            self.verdict().word().into(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what, "peer": self.peer, "ours": self.ours, "theirs": self.theirs, "unit": self.unit,
            "median": self.middle(), "min": smallest(&self.rounds), "max": largest(&self.rounds),
            "rounds": self.rounds, "better": if self.better == Better::Lower { "lower" } else { "higher" },
            "floor": self.floor, "aim": self.aim, "verdict": self.verdict().word(),
        })
    }
}

/// The table as Markdown.
pub(crate) fn text(rows: &[Row]) -> String {
    let head =
        ["what", "peer", "ours", "peer's", "ratio (min–max)", "floor", "aim", "verdict"].map(str::to_owned);
    let cells: Vec<[String; 8]> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| {
        cells.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..8).map(width).collect();
    let line = |row: &[String; 8]| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!(" {cell:width$} "));
        format!("|{}|\n", padded.collect::<Vec<_>>().join("|"))
    };
    let rule: Vec<String> = widths.iter().map(|w| "-".repeat(w + 2)).collect();
    let mut out = String::new();
    for (index, row) in cells.iter().enumerate() {
        out += &line(row);
        if index == 0 {
            out += &format!("|{}|\n", rule.join("|"));
        }
    }
    out
}

/// The table as JSON.
pub(crate) fn machine(rows: &[Row], about: &Value) -> String {
    json!({ "machine": about, "rows": rows.iter().map(Row::json).collect::<Vec<_>>() }).to_string()
}

/// The upper median; 0 without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Ratio by round.
pub(crate) fn divide(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(a, b)| a / b).collect()
}

fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Three significant digits.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v == 0.0 || v >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(better: Better, rounds: &[f64]) -> Row {
        Row {
            what: "iris".into(),
            peer: "MLServer".into(),
            ours: "1".into(),
            theirs: "2".into(),
            rounds: rounds.to_vec(),
            unit: "x",
            better,
            floor: Some(if better == Better::Lower { 1.3 } else { 8.0 }),
            aim: Some(if better == Better::Lower { 0.8 } else { 25.0 }),
        }
    }

    #[test]
    fn verdict_uses_the_median_round() {
        for (better, rounds, verdict) in [
            (Better::Lower, &[0.1, 0.7, 9.0][..], Verdict::Aim),
            (Better::Lower, &[1.0, 0.1, 1.2], Verdict::Holds),
            (Better::Lower, &[1.4], Verdict::Fails),
            (Better::Higher, &[7.9, 7.0, 100.0], Verdict::Fails),
            (Better::Higher, &[8.0], Verdict::Holds),
            (Better::Higher, &[25.0], Verdict::Aim),
        ] {
            assert_eq!(row(better, rounds).verdict(), verdict, "{rounds:?}");
        }
        let without = Row { floor: None, ..row(Better::Lower, &[2.0]) };
        assert_eq!(without.verdict(), Verdict::Measured);
    }

    #[test]
    fn the_table_is_markdown() {
        let shown = text(&[row(Better::Higher, &[30.0, 29.0, 31.25])]);
        assert!(
            shown.contains(
                "| iris | MLServer | 1    | 2      | 30.0x (29.0–31.2) | ≥ 8.00x | ≥ 25.0x | aim reached |"
            ),
            "{shown}"
        );
        assert!(machine(&[row(Better::Lower, &[1.0])], &Value::Null).contains("\"median\":1.0"));
    }
}
