//! Every model under `testdata/trees/golden` predicts the same as the library that trained it.

use std::fs;
use std::path::{Path, PathBuf};

use gantry_trees::{Format, Model, Output, PredictionValues, Rows};

/// One `.expected` file; `testdata/trees/make_golden.py` describes the format.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) model_file: String,
    pub(crate) single: bool,
    pub(crate) rows: usize,
    sections: Vec<(String, usize, Vec<String>)>,
}

pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/trees/golden")
}

pub(crate) fn all() -> Vec<Golden> {
    let mut paths: Vec<_> = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "expected"));
    paths.sort();
    paths.iter().map(|path| Golden::read(path)).collect()
}

impl Golden {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let header: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let rows = header[3].parse().unwrap();
        let mut sections = Vec::new();
        while let Some(line) = lines.next() {
            let (name, width) = line.split_once(' ').unwrap();
            let words = lines.by_ref().take(rows).flat_map(|line| line.split(' ')).map(str::to_owned);
            sections.push((name.to_owned(), width.parse().unwrap(), words.collect()));
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Self { name, model_file: header[1].into(), single: header[5] == "f32", rows, sections }
    }

    fn section<T: std::str::FromStr<Err: std::fmt::Debug>>(&self, name: &str) -> Option<(usize, Vec<T>)> {
        let (_, width, words) = self.sections.iter().find(|section| section.0 == name)?;
        Some((*width, words.iter().map(|word| word.parse().unwrap()).collect()))
    }

    pub(crate) fn model(&self) -> Model {
        let bytes = fs::read(directory().join(&self.model_file)).unwrap();
        Model::from_bytes(&bytes, Format::sniff(&bytes).unwrap()).unwrap()
    }

    /// Predicts the first `rows` rows in the type that the library was given.
    fn predict(&self, model: &Model, output: Output, rows: usize) -> (usize, PredictionValues) {
        let prediction = if self.single {
            let (width, input) = self.section::<f32>("input").unwrap();
            model.predict(Rows::f32(&input[..rows * width], rows, width).unwrap(), output)
        } else {
            let (width, input) = self.section::<f64>("input").unwrap();
            model.predict(Rows::f64(&input[..rows * width], rows, width).unwrap(), output)
        };
        let prediction = prediction.unwrap();
        assert_eq!(prediction.outputs, model.outputs_per_row(output));
        (prediction.outputs, prediction.values)
    }

    fn check_numbers(&self, model: &Model, name: &str, output: Output) -> Result<(), String> {
        let (width, _) = self.section::<f64>(name).unwrap();
        for rows in [self.rows, 1, 7, 9, 16, 33] {
            let (outputs, values) = self.predict(model, output, rows);
            assert_eq!(outputs, width, "{}: {name}", self.name);
            let (actual, expected): (Vec<f64>, Vec<f64>) = match values {
                PredictionValues::F32(values) => {
                    let (_, expected) = self.section::<f32>(name).unwrap();
                    (
                        values.into_iter().map(f64::from).collect(),
                        expected.into_iter().map(f64::from).collect(),
                    )
                }
                PredictionValues::F64(values) => (values, self.section(name).unwrap().1),
                PredictionValues::U32(_) => unreachable!("numbers were expected"),
            };
            assert_eq!(actual.len(), rows * width);
            for (index, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                let close = (actual - expected).abs() <= 1e-6 * expected.abs().max(1.0);
                let same = actual.total_cmp(expected).is_eq() || actual.is_nan() && expected.is_nan();
                if !close && !same {
                    let row = index / width;
                    return Err(format!(
                        "{}: {name} of row {row} is {actual}, expected {expected}",
                        self.name
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_whole(&self, model: &Model, name: &str, output: Output) -> Result<(), String> {
        let Some((width, expected)) = self.section::<u32>(name) else { return Ok(()) };
        let (outputs, values) = self.predict(model, output, self.rows);
        assert_eq!(outputs, width, "{}: {name}", self.name);
        if values == PredictionValues::U32(expected) {
            Ok(())
        } else {
            Err(format!("{}: {name} differs", self.name))
        }
    }

    fn check(&self) -> Result<(), String> {
        let model = self.model();
        assert_eq!(Some(model.features()), self.section::<String>("input").map(|section| section.0));
        self.check_whole(&model, "leaf", Output::Leaf)?;
        self.check_numbers(&model, "margin", Output::Margin)?;
        self.check_numbers(&model, "predict", Output::Predict)?;
        self.check_whole(&model, "class", Output::Class)?;
        assert_eq!(model.classes().is_some(), self.section::<u32>("class").is_some(), "{}", self.name);
        Ok(())
    }
}

#[test]
fn predictions_match_the_libraries() {
    let cases = all();
    assert!(cases.len() > 100, "only {} cases were found", cases.len());
    let wrong: Vec<String> = cases.iter().filter_map(|case| case.check().err()).collect();
    assert!(wrong.is_empty(), "{} of {} cases differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
