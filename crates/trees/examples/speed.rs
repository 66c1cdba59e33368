//! Times predictions of a model file on raw rows.
//!
//! `speed MODEL ROWS BATCH THREADS SECONDS [f64]`: ROWS holds little-endian numbers without a header, row by row,
//! in single precision or, with the last word, in double. Batches walk through the rows. One JSON line is printed:
//! the best and the median time of a call in nanoseconds, and the sum of the first batch's outputs as a check.
#![allow(clippy::print_stdout, reason = "the result of this program is what it prints")]

use std::error::Error;
use std::time::{Duration, Instant};

use gantry_trees::{Format, Model, Output, Prediction, PredictionValues, Rows};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, rows, batch, threads, seconds, kind @ ..] = arguments.as_slice() else {
        return Err("usage: speed MODEL ROWS BATCH THREADS SECONDS [f64]".into());
    };
    let model = std::fs::read(model)?;
    let started = Instant::now();
    let model = Model::from_bytes(&model, Format::sniff(&model)?)?;
    let load = started.elapsed();
    let bytes = std::fs::read(rows)?;
    let limit = Duration::from_secs_f64(seconds.parse()?);
    let (batch, threads, features) = (batch.parse::<usize>()?, threads.parse()?, model.features());
    let (mut times, check) = if kind.iter().any(|word| word == "f64") {
        let values: Vec<f64> = bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        time(&values, batch * features, limit, |values| {
            Ok(model.predict_with_threads(Rows::f64(values, batch, features)?, Output::Predict, threads)?)
        })?
    } else {
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        time(&values, batch * features, limit, |values| {
            Ok(model.predict_with_threads(Rows::f32(values, batch, features)?, Output::Predict, threads)?)
        })?
    };
    times.sort_unstable();
    let at = |index: usize| times.get(index).map_or(0, Duration::as_nanos);
    println!(
        "{{\"batch\":{batch},\"threads\":{threads},\"best_ns\":{},\"median_ns\":{},\"check\":{check},\"load_us\":{},\
         \"memory_bytes\":{}}}",
        at(0),
        at(times.len() / 2),
        load.as_micros(),
        model.memory_bytes(),
    );
    Ok(())
}

/// Calls `predict` on one batch after the other until the time is over, after a tenth of it to warm up.
fn time<V>(
    values: &[V],
    batch: usize,
    limit: Duration,
    predict: impl Fn(&[V]) -> Result<Prediction, Box<dyn Error>>,
) -> Result<(Vec<Duration>, f64), Box<dyn Error>> {
    if batch == 0 || values.len() < batch {
        return Err(format!("a batch has {batch} values, but the rows only {}", values.len()).into());
    }
    let mut times = Vec::new();
    let started = Instant::now();
    for batch in values.chunks_exact(batch).cycle() {
        let call = Instant::now();
        std::hint::black_box(predict(batch)?);
        let elapsed = call.elapsed();
        if started.elapsed() > limit / 10 {
            times.push(elapsed);
        }
        if started.elapsed() > limit {
            break;
        }
    }
    let first = predict(values.get(..batch).unwrap_or_default())?;
    let check = match first.values {
        PredictionValues::F32(values) => values.into_iter().map(f64::from).sum(),
        PredictionValues::F64(values) => values.iter().sum(),
        PredictionValues::U32(values) => values.into_iter().map(f64::from).sum(),
    };
    Ok((times, check))
}
