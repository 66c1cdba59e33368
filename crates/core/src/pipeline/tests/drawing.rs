//! Drawings.

use super::{
    properties::{config, joins, random_pipeline},
    *,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn joincheck() -> Definition {
    let steps = vec![
        step("tokenize", &[]),
        step("classify", &["tokenize"]),
        step("explain", &["tokenize.outputs.ids"]).triggers(&["classify.outputs.uncertain"]),
    ];
    Definition {
        name: "joincheck".into(),
        ..pipeline(steps, &["classify", "explain"]).output_join(Join::Outer)
    }
}

#[test]
fn lines_connect_steps_from_left_to_right() {
    let cases = [
        (
            pipeline(vec![step("a", &[]), step("longer", &["a"]), step("c", &["longer"])], &["c"]),
            "
  inputs ─▶ a ─▶ longer ─▶ c ─▶ output
",
        ),
        (
            joincheck(),
            "
  inputs ─▶ tokenize ─┬─▶ classify ─┬─▶ output
                      └─▶ explain ──┘
  explain: reads tokenize.ids; triggered by classify.uncertain
  output: reads what arrives of classify, explain
",
        ),
        (
            pipeline(
                vec![
                    step("a", &[]),
                    step("bb", &["a"]),
                    step("c", &["a"]),
                    step("d", &["a"]),
                    step("e", &["bb", "c", "d"]),
                ],
                &["e"],
            ),
            "
  inputs ─▶ a ─┬─▶ bb ─┬─▶ e ─▶ output
               ├─▶ c ──┤
               └─▶ d ──┘
",
        ),
        (
            pipeline(vec![step("a", &[]), step("b", &["a"]), step("c", &["b", "a", "p"])], &["c"]),
            "
  inputs ─┬─▶ a ───┬─▶ b ─┬─▶ c ─▶ output
          └──────┐ └──────┤
                 └────────┘
",
        ),
        (
            pipeline(
                vec![
                    step("a", &[]),
                    step("b", &[]),
                    step("c", &[]),
                    step("d", &["c", "a"]),
                    step("e", &["b"]),
                ],
                &["d", "e"],
            ),
            "
  inputs ─┬─▶ a ─┬─▶ d ─┬─▶ output
          ├─▶ b ─│─▶ e ─┘
          └─▶ c ─┘
",
        ),
        (
            cycles::counter(3),
            "
  inputs ─▶ count ─┬─▶ end ──▶ output
                   └─▶ loop
  cycle: loop ─▶ count
  count: reads the first of inputs, loop
  end: reads count.n; triggered by count.stop
  loop: reads count.n; triggered by count.continue
",
        ),
    ];
    for (definition, expected) in cases {
        assert_eq!(format!("\n{}", draw::text(&definition.graph())), expected);
    }
}

#[test]
fn ambiguous_and_large_drawings_are_lists() {
    let crossed =
        vec![step("a", &[]), step("b", &[]), step("c", &["a", "b"]), step("d", &["b"]).triggers(&["a"])];
    assert_eq!(
        format!("\n{}", draw::text(&pipeline(crossed, &["c", "d"]).graph())),
        "
  inputs ─▶ a
  inputs ─▶ b
  a, b ─▶ c
  b ─▶ d
  c, d ─▶ output
  d: triggered by a
"
    );
    let many: Vec<_> = (0..60).map(|i| step(&format!("s{i}"), &[])).collect();
    let text = draw::text(&pipeline(many, &["s0"]).graph());
    assert!(text.lines().count() == 61 && text.starts_with("  inputs ─▶ s0\n"), "{text}");
}

#[test]
fn mermaid_has_labels_and_dotted_triggers() {
    let expected = "\
flowchart LR
    n0([\"inputs\"])
    n1[\"tokenize\"]
    n2[\"classify\"]
    n3[\"explain\"]
    n4([\"output\"])
    n0 --> n1
    n1 --> n2
    n1 -->|\"ids\"| n3
    n2 -.->|\"uncertain\"| n3
    n2 --> n4
    n3 --> n4
";
    assert_eq!(draw::mermaid(&joincheck().graph()), expected);
}

/// The path of each line of a drawing, by its title.
fn svg_lines(definition: &Definition) -> Vec<(String, String)> {
    let svg = draw::svg(&definition.graph());
    let lines = svg.lines().filter_map(|line| line.strip_prefix("<path d=\"")?.split_once('"'));
    lines
        .map(|(path, rest)| {
            let title = rest.split_once("<title>").and_then(|(_, title)| title.split_once('<')).unwrap().0;
            (title.to_owned(), path.to_owned())
        })
        .collect()
}

#[test]
fn svg_leads_back_below_the_steps() {
    let steps = vec![step("a", &["p", "c"]).any(), step("b", &["a"]), step("c", &["b"])];
    let lines = svg_lines(&pipeline(steps, &["c"]).cyclic(3));
    let of =
        |title: &'static str| lines.iter().filter(move |(t, _)| t == title).map(|(_, path)| path.as_str());
    let back: Vec<&str> = of("c").filter(|path| path.contains(" H")).collect();
    let ys = |path: &str| -> Vec<usize> {
        let numbers = path.split([' ', 'M', 'C', 'H']).filter_map(|number| number.parse().ok());
        numbers.collect()
    };
    let [back] = back[..] else { panic!("{lines:?}") };
    assert!(ys(back).contains(&58), "below the row of the steps, which ends at 48: {back}");
    let forward: Vec<&str> = of("a").collect();
    assert!(forward.iter().all(|path| !path.contains(" H")), "{forward:?}");
}

#[test]
fn svg_leaves_the_column_before_it_bends() {
    let steps = vec![step("a", &[]), step("much-longer", &[]), step("b", &["much-longer", "a"])];
    let lines = svg_lines(&pipeline(steps, &["b"]));
    let path = &lines.iter().find(|(title, path)| title == "a" && path.starts_with("M160 32")).unwrap().1;
    assert!(path.starts_with("M160 32 H240 C"), "the longer step ends at 240: {path} {lines:?}");
}

#[test]
fn svg_draws_input_and_trigger_of_one_step_beside_each_other() {
    let steps = vec![step("a", &[]), step("b", &["a.outputs.x"]).triggers(&["a.outputs.y"])];
    let lines = svg_lines(&pipeline(steps, &["b"]));
    let between: BTreeSet<&str> =
        lines.iter().filter(|(title, _)| title.starts_with("a.")).map(|(_, path)| path.as_str()).collect();
    assert_eq!(between.len(), 2, "{lines:?}");
}

#[test]
fn names_are_escaped() {
    let definition = pipeline(vec![step("<a\"&#\n>", &[])], &[]);
    let (svg, mermaid) = (draw::svg(&definition.graph()), draw::mermaid(&definition.graph()));
    assert!(svg.contains("&lt;a&quot;&amp;# &gt;</text>"), "{svg}");
    assert!(mermaid.contains("n1[\"<a#quot;&#35; >\"]"), "{mermaid}");
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn drawings_show_every_step_once_and_every_edge(definition in random_pipeline(joins().boxed(), false, true)) {
        let graph = definition.graph();
        let (text, svg, mermaid) = (draw::text(&graph), draw::svg(&graph), draw::mermaid(&graph));
        for step in &definition.steps {
            prop_assert!(text.contains(&*step.name), "{text}");
            prop_assert_eq!(svg.matches(&format!(">{}</text>", step.name)).count(), 1);
            prop_assert_eq!(mermaid.matches(&format!("[\"{}\"]", step.name)).count(), 1);
        }
        prop_assert!(text.lines().all(|line| line.chars().count() <= 200));
        let edges = mermaid.lines().filter(|line| line.contains("->")).count();
        prop_assert_eq!(svg.matches("marker-end").count(), edges);
    }
}
