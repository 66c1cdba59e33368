//! Models in zip archives, by the names in the archive.

use crate::{Converter, Loader, Recognised, Requirements, Route, formats, pickle};
use std::{fs::File, io::Read as _, path::Path};

const MAX_ENTRIES: usize = 100_000;
const MAX_METADATA: u64 = 1 << 20;

/// `None` when the archive is none of a model.
pub(crate) fn recognise(path: &Path) -> Option<Recognised> {
    let damaged =
        |error: String| Recognised::refused(path, "zip archive", format!("cannot be read: {error}"));
    let is_model = path.extension().is_some_and(|ending| {
        ["keras", "pt", "pth", "pt2", "skops", "mar", "bin"]
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
    });
    let mut archive = match File::open(path).map_err(zip::result::ZipError::Io).and_then(zip::ZipArchive::new)
    {
        Ok(archive) if archive.len() <= MAX_ENTRIES => archive,
        Ok(_) => return is_model.then(|| damaged("it has too many files".into())),
        Err(error) => return is_model.then(|| damaged(error.to_string())),
    };
    let names: Vec<String> = archive.file_names().flatten().map(std::borrow::Cow::into_owned).collect();
    let has = |name: &str| names.iter().any(|n| n == name);
    let below = |name: &str| names.iter().find(|n| n.ends_with(&format!("/{name}"))).cloned();
    if has("config.json") && has("model.weights.h5") {
        let text = text(&mut archive, "metadata.json");
        let metadata: Option<serde_json::Value> = text.and_then(|text| serde_json::from_str(&text).ok());
        let version = metadata.and_then(|m| m.get("keras_version")?.as_str().map(str::to_owned));
        return Some(formats::keras(path, version.as_deref()));
    }
    if has("MAR-INF/MANIFEST.json") {
        return Some(Recognised::refused(
            path,
            "TorchServe archive",
            "unpack it, and export its network: torch.onnx.export(model, (example,), \"model.onnx\")",
        ));
    }
    if has("model.ini") && names.iter().any(|name| name.starts_with("domains/")) {
        return Some(Recognised::refused(
            path,
            "H2O MOJO",
            "Gantry does not read it: train with a library that exports ONNX",
        ));
    }
    if has("schema.json") && path.extension().is_some_and(|ending| ending == "skops") {
        return Some(Recognised {
            file: path.to_owned(),
            description: "skops file of scikit-learn".into(),
            runs_code: true,
            route: Route::Python {
                loader: Loader::Skops,
                requirements: Requirements::new(&["scikit-learn", "skops", "pandas"]),
            },
            converter: None,
        });
    }
    let torch = |description: &str, loader, converter| {
        Some(Recognised {
            file: path.to_owned(),
            description: description.into(),
            runs_code: loader == Loader::TorchPickle,
            route: Route::Python { loader, requirements: Requirements::new(&["torch", "numpy"]) },
            converter,
        })
    };
    if below("archive_format").is_some()
        || has("serialized_exported_program.json")
        || below("models/model.json").is_some()
    {
        return torch("PyTorch program of torch.export", Loader::TorchExport, Some(Converter::TorchExport));
    }
    let data = below("data.pkl")?;
    if below("constants.pkl").is_some() {
        return torch("TorchScript model", Loader::Torchscript, Some(Converter::Torchscript));
    }
    let scan = archive.by_name(&data).map_err(std::io::Error::other).and_then(pickle::scan);
    let classes = scan.map(|scan| scan.classes).unwrap_or_default();
    let is_module = |class: &&String| class.starts_with("torch.nn.modules.");
    let foreign = classes.iter().find(|class| {
        !["torch", "collections", "_codecs"].contains(&class.split('.').next().unwrap_or_default())
    });
    match (classes.iter().find(is_module), foreign) {
        (_, Some(class)) => Some(Recognised::refused(
            path,
            "PyTorch pickle",
            format!(
                "it needs the class {class}. Export it where that is: torch.onnx.export(model, (example,), \"model.onnx\")"
            ),
        )),
        (Some(_), None) => torch("PyTorch module", Loader::TorchPickle, None),
        (None, None) => Some(Recognised::refused(
            path,
            "PyTorch state_dict",
            "holds weights without the code of the network. Export it where the code is: \
             torch.onnx.export(model, (example,), \"model.onnx\")",
        )),
    }
}

fn text(archive: &mut zip::ZipArchive<File>, name: &str) -> Option<String> {
    let mut text = String::new();
    archive.by_name(name).ok()?.take(MAX_METADATA).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use zip::write::SimpleFileOptions;

    fn recognised(name: &str, files: &[(&str, &[u8])]) -> Option<Recognised> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        let mut writer = zip::ZipWriter::new(File::create(&path).unwrap());
        for (name, content) in files {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap();
        recognise(&path)
    }

    #[test]
    fn archives_are_recognised_by_the_names_in_them() {
        let weights = b"\x80\x02ccollections\nOrderedDict\nctorch._utils\n_rebuild_tensor_v2\n.";
        let module = b"\x80\x02ctorch.nn.modules.container\nSequential\n.";
        let own = b"\x80\x02c__main__\nNet\nctorch.nn.modules.linear\nLinear\n.";
        let keras: [(&str, &[u8]); 3] = [
            ("config.json", b"{}"),
            ("metadata.json", b"{\"keras_version\": \"3.9.2\"}"),
            ("model.weights.h5", b""),
        ];
        for (name, files, expected) in [
            ("a.keras", &keras[..], "Keras 3.9.2 model: needs Python."),
            ("b.pt", &[("b/data.pkl", &weights[..])], "PyTorch state_dict: holds weights without"),
            ("c.pt", &[("c/data.pkl", &module[..])], "PyTorch module: needs Python. A pickle runs code"),
            ("d.pt", &[("d/data.pkl", &own[..])], "PyTorch pickle: it needs the class __main__.Net."),
            ("e.pt", &[("e/data.pkl", b""), ("e/constants.pkl", b"")], "TorchScript model: needs Python."),
            ("f.pt2", &[("f/archive_format", b"pt2")], "PyTorch program of torch.export: needs Python."),
            ("g.mar", &[("MAR-INF/MANIFEST.json", b"{}")], "TorchServe archive: unpack it"),
            ("h.skops", &[("schema.json", b"{}")], "skops file of scikit-learn: needs Python."),
            ("i.zip", &[("model.ini", b""), ("domains/d000.txt", b"")], "H2O MOJO"),
        ] {
            let found = recognised(name, files).unwrap_or_else(|| panic!("{name}"));
            assert!(found.reason().contains(expected), "{name}: {}", found.reason());
        }
        assert_eq!(recognised("data.npz", &[("a.npy", b"")]), None);
    }
}
