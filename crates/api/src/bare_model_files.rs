//! Models without a manifest: name and requirement derived from the file name.

use crate::{Model, check_name};

/// A Model derived from a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    pub name: String,
    /// The capability that the server must have.
    pub requirement: &'static str,
}

/// The capability required by a file of this name; `None` when it is not a servable model.
///
/// `.json` and `.txt` files are models only under the file names common for XGBoost and LightGBM.
pub fn runtime_of_file(file_name: &str) -> Option<&'static str> {
    let lower = file_name.to_ascii_lowercase();
    let (stem, ending) = lower.rsplit_once('.')?;
    match ending {
        "onnx" => Some("onnx"),
        "ubj" | "xgb" | "bst" => Some("xgboost"),
        "lgb" => Some("lightgbm"),
        "json" if stem == "model" || stem.contains("xgb") || is_named_model(stem) => Some("xgboost"),
        "txt"
            if stem == "model"
                || stem.contains("lgb")
                || stem.contains("lightgbm")
                || is_named_model(stem) =>
        {
            Some("lightgbm")
        }
        _ => None,
    }
}

/// `fraud.model.json` is treated like `fraud/model.json`.
fn is_named_model(stem: &str) -> bool {
    stem.rsplit_once('.').is_some_and(|(_, last)| last == "model")
}

/// The Model for a file, named after the file, or after its folder when the file is called `model`.
pub fn model_of_file(folder: Option<&str>, file_name: &str) -> Option<ModelFile> {
    let requirement = runtime_of_file(file_name)?;
    let stem = file_name.rsplit_once('.').map_or(file_name, |(stem, _)| stem);
    let stem = stem.strip_suffix(".model").unwrap_or(stem);
    let base = if stem.eq_ignore_ascii_case("model") { folder.unwrap_or(stem) } else { stem };
    let name: String = base
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .collect();
    let name = name.trim_matches('-').to_owned();
    check_name(&name).ok().map(|()| ModelFile { name, requirement })
}

impl ModelFile {
    /// The Model, with its artifact at `storage_uri`.
    pub fn to_model(&self, storage_uri: impl Into<String>) -> Model {
        let mut model = Model::named(&self.name, storage_uri);
        model.spec.requirements = vec![self.requirement.to_owned()];
        model
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_name_and_requirement_follow_from_the_file_name() {
        for (folder, file, expected) in [
            (None, "iris.onnx", Some(("iris", "onnx"))),
            (None, "Iris_V2.ONNX", Some(("iris-v2", "onnx"))),
            (Some("fraud"), "model.json", Some(("fraud", "xgboost"))),
            (Some("fraud"), "model.ubj", Some(("fraud", "xgboost"))),
            (None, "churn.xgb.json", Some(("churn-xgb", "xgboost"))),
            (Some("demand"), "model.txt", Some(("demand", "lightgbm"))),
            (None, "demand.lgb", Some(("demand", "lightgbm"))),
            (None, "README.txt", None),
            (None, "package.json", None),
            (None, "train.py", None),
            (None, "noending", None),
            (None, "___.onnx", None),
        ] {
            let got = model_of_file(folder, file).map(|m| (m.name, m.requirement));
            assert_eq!(got.as_ref().map(|(n, r)| (n.as_str(), *r)), expected, "{file}");
        }
    }
}
