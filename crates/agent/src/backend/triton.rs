//! Triton layout: `config.pbtxt`, and the model in a numbered folder.

use super::{
    Arranged, copy_tree,
    files::{numbered, read_small},
    pbtxt,
};
use crate::model_server::{LoadError, LoadOrder};
use gantry_proto::scheduler::{
    ModelRuntimeInfo, TritonCpu, TritonModelConfig, model_runtime_info::ModelRuntimeInfo as Info,
};
use std::path::Path;

const CONFIG: &str = "config.pbtxt";

pub(super) fn arrange(order: &LoadOrder, target: &Path) -> Result<Arranged, LoadError> {
    let folders = numbered(&order.root);
    let wanted = order.spec().artifact_version;
    let chosen = match wanted {
        Some(wanted) => folders.iter().find(|(number, _)| *number == wanted),
        None => folders.last(),
    };
    if let Some((_, chosen)) = chosen {
        // Only the selected version: Triton would serve the highest.
        copy_tree(&order.root, target, |name| name == chosen || !folders.iter().any(|(_, f)| f == name))?;
    } else {
        copy_tree(&order.root, &target.join("1"), |name| name != CONFIG)?;
        copy_tree(&order.root, target, |name| name == CONFIG)?;
    }
    let file = target.join(CONFIG);
    let text = match read_small(&file)? {
        Some(text) => text,
        None => minimal(target),
    };
    let found = pbtxt::read(&text);
    let renamed = pbtxt::renamed(&text, &found, &order.name);
    std::fs::write(&file, renamed)
        .map_err(|e| LoadError::transient(format!("{CONFIG} cannot be written: {e}")))?;
    let cpu = if found.cpu_instances.is_empty() { vec![1] } else { found.cpu_instances };
    let cpu = cpu.into_iter().map(|instance_count| TritonCpu { instance_count }).collect();
    let info = ModelRuntimeInfo { model_runtime_info: Some(Info::Triton(TritonModelConfig { cpu })) };
    Ok(Arranged { platform: found.backend, runtime_info: Some(info) })
}

/// Triton completes the configuration from the model.
fn minimal(target: &Path) -> String {
    let python = numbered(target).iter().any(|(_, folder)| target.join(folder).join("model.py").is_file());
    if python { "backend: \"python\"\n".to_owned() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::{
        agent::ModelVersion,
        scheduler::{Model, ModelSpec},
    };
    use std::collections::BTreeMap;

    fn arranged(files: &[(&str, &str)], version: Option<u32>) -> (BTreeMap<String, String>, Arranged) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let spec = ModelSpec { artifact_version: version, ..Default::default() };
        let order = LoadOrder {
            name: "m_1".into(),
            directory: root.clone(),
            root,
            parameters: Vec::new(),
            definition: ModelVersion {
                model: Some(Model { model_spec: Some(spec), ..Default::default() }),
                version: 1,
            },
            autoscaling: false,
        };
        let target = dir.path().join("target");
        let result = arrange(&order, &target).unwrap();
        let mut found = BTreeMap::new();
        let mut folders = vec![target.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(&target).unwrap().display().to_string();
                    found.insert(name, std::fs::read_to_string(path).unwrap());
                }
            }
        }
        (found, result)
    }

    #[test]
    fn arrange_selects_version_and_renames_config() {
        type Files<'a> = &'a [(&'a str, &'a str)];
        let config = "name: \"x\" backend: \"python\" instance_group [{ count: 2 }]";
        let renamed = "name: \"m_1\" backend: \"python\" instance_group [{ count: 2 }]";
        let cases: &[(Files<'_>, Option<u32>, Files<'_>, u32)] = &[
            (
                &[("config.pbtxt", config), ("1/model.py", "a"), ("10/model.py", "b"), ("labels.txt", "l")],
                None,
                &[("10/model.py", "b"), ("config.pbtxt", renamed), ("labels.txt", "l")],
                2,
            ),
            (
                &[("config.pbtxt", config), ("1/model.py", "a"), ("10/model.py", "b")],
                Some(1),
                &[("1/model.py", "a"), ("config.pbtxt", renamed)],
                2,
            ),
            (
                &[("model.py", "a")],
                None,
                &[("1/model.py", "a"), ("config.pbtxt", "name: \"m_1\"\nbackend: \"python\"\n")],
                1,
            ),
            (
                &[("config.pbtxt", config), ("model.onnx", "a")],
                None,
                &[("1/model.onnx", "a"), ("config.pbtxt", renamed)],
                2,
            ),
            (
                &[("3/model.onnx", "a")],
                None,
                &[("3/model.onnx", "a"), ("config.pbtxt", "name: \"m_1\"\n")],
                1,
            ),
        ];
        for (files, version, expected, copies) in cases {
            let (found, arranged) = arranged(files, *version);
            let expected: BTreeMap<_, _> =
                expected.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
            assert_eq!(found, expected);
            assert_eq!(crate::backend::copies(arranged.runtime_info.as_ref()), u64::from(*copies));
        }
    }
}
