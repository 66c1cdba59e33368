//! Pipelines that read other pipelines.

use crate::support::{Pipelined, outputs, pipeline, step, until};
use gantry_proto::{
    gantry::route_event::Event,
    scheduler::{Pipeline, PipelineInput},
};

fn reads(sources: &[&str], definition: Pipeline) -> Pipeline {
    let external_inputs = sources.iter().map(|&s| s.to_owned()).collect();
    Pipeline { input: Some(PipelineInput { external_inputs, ..PipelineInput::default() }), ..definition }
}

#[tokio::test(flavor = "multi_thread")]
async fn pipeline_runs_with_the_data_of_the_one_that_it_reads() {
    for (source, rename, expected) in [
        ("first.outputs", None, "y=last(y=b(y=a(x=1)))"),
        ("first.inputs", None, "y=last(x=1)"),
        ("first.step.a.outputs", None, "y=last(y=a(x=1))"),
        ("first.step.b.inputs.y", Some(("first.step.b.inputs.y", "z")), "y=last(z=a(x=1))"),
        ("first.step.aside.outputs", None, "y=last(y=aside(x=1))"),
    ] {
        let pipelined = Pipelined::local().await;
        let steps = vec![step("a", &[]), step("b", &["a"]), step("aside", &[])];
        pipelined.pipeline(pipeline("first", steps, &["b"]));
        let mut second = reads(&[source], pipeline("second", vec![step("last", &[])], &["last"]));
        if let (Some((from, to)), Some(input)) = (rename, &mut second.input) {
            input.tensor_map.insert(from.into(), to.into());
        }
        pipelined.pipeline(second);
        let third = reads(&["second.outputs"], pipeline("third", vec![step("seen", &[])], &["seen"]));
        pipelined.pipeline(third);
        let answer = pipelined.infer("first", &["x"]).await;
        assert_eq!(outputs(&answer), "y=b(y=a(x=1))");
        // The inputs of the step `seen` are the outputs of `second`.
        until("the third pipeline runs", || async { pipelined.models.calls("seen_1") == 1 }).await;
        assert_eq!(pipelined.models.inputs("seen_1"), [expected], "{source}");
        let line = |pipeline| {
            format!(
                "seldon_pipeline_infer_total{{server=\"pipeline-gateway\",pipeline=\"{pipeline}\",method_type=\"grpc\",code=\"0\"}}"
            )
        };
        until("it is recorded", || async { pipelined.running.metric(&line("third")) == 1 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_the_reading_pipeline_itself_work() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(reads(&["first.outputs"], pipeline("p", vec![step("a", &[])], &["a"])));
    assert_eq!(outputs(&pipelined.infer("p", &["x"]).await), "y=a(x=1)");
}

#[tokio::test(flavor = "multi_thread")]
async fn join_of_sources_decides_whether_the_pipeline_starts() {
    let sources = ["first.outputs.y", "first.outputs.none"];
    for (join, runs) in [(0, false), (1, true), (2, true)] {
        let pipelined = Pipelined::local().await;
        pipelined.pipeline(pipeline("first", vec![step("a", &[])], &["a"]));
        let mut second = reads(&sources, pipeline("second", vec![step("b", &[])], &["b"]));
        if let Some(input) = &mut second.input {
            input.join_type = join;
        }
        pipelined.pipeline(second);
        // Reads the same run, and shows that it has ended.
        pipelined.pipeline(reads(&["first"], pipeline("third", vec![step("c", &[])], &["c"])));
        pipelined.infer("first", &["x"]).await;
        until("the other pipeline runs", || async { pipelined.models.calls("c_1") == 1 }).await;
        if runs {
            until("the pipeline runs", || async { pipelined.models.calls("b_1") == 1 }).await;
            assert_eq!(pipelined.models.inputs("b_1"), ["y=a(x=1)"]);
        }
        assert_eq!(pipelined.models.calls("b_1"), usize::from(runs), "join {join}");
    }
}

/// Two pipelines read the first one, and `both` reads their outputs.
#[tokio::test(flavor = "multi_thread")]
async fn runs_of_one_request_are_joined() {
    for (join, window, sources, expected) in [
        (0, None, ["left.outputs", "right.outputs"], "y=l(y=a(x=1)),y=r(y=a(x=1))"),
        (1, None, ["left.outputs", "right.outputs"], "y=l(y=a(x=1)),y=r(y=a(x=1))"),
        // No run of `absent` arrives: the window of an outer join closes.
        (1, Some(10), ["left.outputs", "absent.outputs"], "y=l(y=a(x=1))"),
    ] {
        let pipelined = Pipelined::local().await;
        let mut both = reads(&sources, pipeline("both", vec![step("b", &[])], &["b"]));
        if let Some(input) = &mut both.input {
            (input.join_type, input.join_window_ms) = (join, window);
        }
        pipelined.pipeline(both);
        pipelined.pipeline(reads(&["first"], pipeline("left", vec![step("l", &[])], &["l"])));
        pipelined.pipeline(reads(&["first.outputs"], pipeline("right", vec![step("r", &[])], &["r"])));
        pipelined.pipeline(pipeline("first", vec![step("a", &[])], &["a"]));
        pipelined.infer("first", &["x"]).await;
        until("the joined pipeline runs", || async { pipelined.models.calls("b_1") == 1 }).await;
        assert_eq!(pipelined.models.inputs("b_1"), [expected], "{sources:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_different_requests_are_not_joined() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(pipeline("left", vec![step("l", &[])], &["l"]));
    pipelined.pipeline(pipeline("right", vec![step("r", &[])], &["r"]));
    let both = reads(&["left.outputs", "right.outputs"], pipeline("both", vec![step("b", &[])], &["b"]));
    pipelined.pipeline(both);
    pipelined.pipeline(reads(&["right.outputs"], pipeline("seen", vec![step("c", &[])], &["c"])));
    pipelined.infer("left", &["x"]).await;
    pipelined.infer("right", &["x"]).await;
    until("the other pipeline runs", || async { pipelined.models.calls("c_1") == 1 }).await;
    assert_eq!(pipelined.models.calls("b_1"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn cycle_of_pipelines_ends() {
    let pipelined = Pipelined::local().await;
    pipelined.pipeline(reads(&["q.outputs"], pipeline("p", vec![step("a", &[])], &["a"])));
    pipelined.pipeline(reads(&["p.outputs"], pipeline("q", vec![step("b", &[])], &["b"])));
    pipelined.infer("p", &["x"]).await;
    until("the last run", || async { pipelined.models.calls("a_1") == 5 }).await;
    assert_eq!((pipelined.models.calls("a_1"), pipelined.models.calls("b_1")), (5, 4));
    pipelined.apply(Event::DeletePipeline("q".into()));
    pipelined.infer("p", &["x"]).await;
    assert_eq!(pipelined.models.calls("b_1"), 4, "a deleted pipeline does not start");
}
