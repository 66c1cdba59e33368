//! Packages that a model needs, by the modules that its file names.
//!
//! A name out of a model file is never installed: only packages of this list are.

use crate::pickle::PickleScan;
use std::ops::RangeInclusive;

/// XGBoost without the packages for GPUs, where a wheel of it exists.
pub(crate) const XGBOOST: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "xgboost-cpu" } else { "xgboost" };

/// Module and package.
const PACKAGES: &[(&str, &str)] = &[
    ("catboost", "catboost"),
    ("category_encoders", "category-encoders"),
    ("cloudpickle", "cloudpickle"),
    ("dill", "dill"),
    ("econml", "econml"),
    ("feature_engine", "feature-engine"),
    ("hdbscan", "hdbscan"),
    ("imblearn", "imbalanced-learn"),
    ("interpret", "interpret"),
    ("joblib", "joblib"),
    ("keras", "keras"),
    ("lightgbm", "lightgbm"),
    ("mlxtend", "mlxtend"),
    ("ngboost", "ngboost"),
    ("nltk", "nltk"),
    ("numpy", "numpy"),
    ("pandas", "pandas"),
    ("polars", "polars"),
    ("prophet", "prophet"),
    ("scipy", "scipy"),
    ("skl2onnx", "skl2onnx"),
    ("sklearn", "scikit-learn"),
    ("sktime", "sktime"),
    ("statsmodels", "statsmodels"),
    ("tensorflow", "tensorflow"),
    ("torch", "torch"),
    ("umap", "umap-learn"),
    ("xgboost", XGBOOST),
];

/// Modules of Python itself that models refer to.
const STANDARD: &[&str] = &[
    "__builtin__",
    "_codecs",
    "_collections",
    "_io",
    "_operator",
    "_pickle",
    "_random",
    "_struct",
    "abc",
    "array",
    "builtins",
    "codecs",
    "collections",
    "copy",
    "copy_reg",
    "copyreg",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "inspect",
    "io",
    "itertools",
    "json",
    "logging",
    "math",
    "numbers",
    "operator",
    "pathlib",
    "pickle",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "threading",
    "time",
    "types",
    "typing",
    "unicodedata",
    "uuid",
    "warnings",
    "weakref",
    "zoneinfo",
];

/// Modules that a model has no use for: a pickle that refers to them runs commands or opens connections.
const SUSPICIOUS: &[&str] = &[
    "asyncio",
    "commands",
    "ctypes",
    "http",
    "multiprocessing",
    "nt",
    "os",
    "posix",
    "pty",
    "requests",
    "runpy",
    "shutil",
    "socket",
    "subprocess",
    "sys",
    "urllib",
    "webbrowser",
];
const SUSPICIOUS_BUILTINS: &[&str] =
    &["eval", "exec", "compile", "__import__", "open", "breakpoint", "input"];

/// Packages for `pip install`, and the Python versions that they support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirements {
    pub packages: Vec<String>,
    /// Minor versions of Python 3.
    pub python: RangeInclusive<u32>,
}

impl Default for Requirements {
    fn default() -> Self {
        Self { packages: Vec::new(), python: 9..=14 }
    }
}

impl Requirements {
    pub fn new(packages: &[&str]) -> Self {
        Self { packages: packages.iter().map(|p| (*p).to_owned()).collect(), ..Self::default() }
    }

    /// Adds a package unless one of that name is there.
    pub fn add(&mut self, package: &str) {
        let name = |package: &str| {
            let end = package.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')));
            package
                .get(..end.unwrap_or(package.len()))
                .unwrap_or_default()
                .to_ascii_lowercase()
                .replace('_', "-")
        };
        if !self.packages.iter().any(|known| name(known) == name(package)) {
            self.packages.push(package.to_owned());
        }
    }

    /// The same with more packages.
    #[must_use]
    pub fn with(mut self, packages: &[&str]) -> Self {
        for package in packages {
            self.add(package);
        }
        self
    }

    /// scikit-learn in a version, with what its wheels were built for.
    pub fn sklearn(version: Option<&str>) -> Self {
        let Some(version) = version else { return Self::new(&["scikit-learn"]) };
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        let python = match (major, minor) {
            (0, ..=23) => 6..=8,
            (0, _) => 6..=9,
            (1, 0) => 7..=10,
            (1, 1 | 2) => 8..=11,
            (1, 3) => 8..=12,
            (1, 4 | 5) => 9..=12,
            (1, 6) => 9..=13,
            (1, 7) => 10..=13,
            _ => 11..=14,
        };
        let mut requirements = Self { packages: vec![format!("scikit-learn=={version}")], python };
        // Their metadata have no upper bound, but they were built for numpy 1.
        if (major, minor) < (1, 3) {
            requirements.add("numpy<2");
        }
        requirements
    }
}

/// What stands against loading a pickle, even with the user's permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unloadable {
    /// A class or function of a module with other purposes.
    Suspicious(String),
    /// A class of a module in no known package.
    UnknownModule(String),
}

/// Packages of the modules in a pickle. `local` tells whether the model's folder contains a module.
pub(crate) fn of_pickle(scan: &PickleScan, local: impl Fn(&str) -> bool) -> Result<Requirements, Unloadable> {
    let mut requirements = if scan.packages().contains(&"sklearn") {
        Requirements::sklearn(scan.sklearn.as_deref())
    } else {
        Requirements::default()
    };
    for class in &scan.classes {
        let (top, rest) = class.split_once('.').unwrap_or((class, ""));
        let is_builtin = matches!(top, "builtins" | "__builtin__");
        if SUSPICIOUS.contains(&top) || (is_builtin && SUSPICIOUS_BUILTINS.contains(&rest)) {
            return Err(Unloadable::Suspicious(class.clone()));
        }
        if STANDARD.contains(&top) || local(top) {
            continue;
        }
        match PACKAGES.iter().find(|(module, _)| *module == top) {
            Some((_, package)) => requirements.add(package),
            None => return Err(Unloadable::UnknownModule(class.clone())),
        }
    }
    // The estimators of other libraries derive from its classes.
    if scan
        .classes
        .iter()
        .any(|class| class.starts_with("lightgbm.sklearn.") || class.starts_with("xgboost.sklearn."))
        && !scan.packages().contains(&"sklearn")
    {
        requirements.add(
            &scan.sklearn.as_ref().map_or_else(|| "scikit-learn".into(), |v| format!("scikit-learn=={v}")),
        );
    }
    // Arrays of numpy 2 are in modules that numpy 1 does not have.
    if scan.classes.iter().any(|class| class.starts_with("numpy._core.")) {
        requirements.packages.retain(|package| package != "numpy");
        requirements.add("numpy>=2");
    }
    requirements.add("joblib");
    if scan.named_columns {
        requirements.add("pandas");
    }
    Ok(requirements)
}

/// The lines of a `requirements.txt` that name packages. Options and addresses are left out: they could install from
/// other places than the user's index.
pub(crate) fn lines(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.split(" #").next().unwrap_or_default().trim())
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphanumeric()))
        .filter(|line| {
            !line.contains("://") && !line.contains(" @") && !line.contains(" -") && line.len() < 200
        })
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(classes: &[&str], sklearn: Option<&str>) -> PickleScan {
        PickleScan {
            classes: classes.iter().map(|c| (*c).to_owned()).collect(),
            sklearn: sklearn.map(str::to_owned),
            named_columns: false,
        }
    }

    #[test]
    fn requirements_follow_from_the_modules() {
        let of = |classes: &[&str], version| of_pickle(&scan(classes, version), |top| top == "features");
        let found =
            of(&["sklearn.svm._classes.SVC", "numpy._core.multiarray._reconstruct"], Some("1.7.2")).unwrap();
        assert_eq!(found.packages, ["scikit-learn==1.7.2", "numpy>=2", "joblib"]);
        assert_eq!(found.python, 10..=13);
        let old =
            of(&["sklearn.svm._classes.SVC", "numpy.core.multiarray._reconstruct"], Some("1.0.2")).unwrap();
        assert_eq!(old.packages, ["scikit-learn==1.0.2", "numpy<2", "joblib"]);
        let xgboost = of(&["xgboost.sklearn.XGBClassifier", "features.Ratio"], None).unwrap();
        assert_eq!(xgboost.packages, [XGBOOST, "scikit-learn", "joblib"]);
        assert_eq!(
            of(&["sklearn.svm._classes.SVC", "pricing.Ratio"], None),
            Err(Unloadable::UnknownModule("pricing.Ratio".into()))
        );
        for class in ["posix.system", "builtins.eval", "subprocess.Popen"] {
            assert_eq!(of(&[class], None), Err(Unloadable::Suspicious(class.into())));
        }
        assert!(of(&["builtins.getattr"], None).is_ok());
    }

    #[test]
    fn requirement_files_install_from_the_index_only() {
        let text = "mlflow==3.1\nnumpy>=1.26 # arrays\n# no\n-r other.txt\n--index-url https://x\ngit+https://x\n\
                    pkg @ https://x\n./local\n";
        assert_eq!(lines(text), ["mlflow==3.1", "numpy>=1.26"]);
        let requirements =
            Requirements::new(&["scikit_learn==1.0"]).with(&["scikit-learn", "numpy<2", "numpy"]);
        assert_eq!(requirements.packages, ["scikit_learn==1.0", "numpy<2"]);
    }
}
