//! Verification of the manifests with Helm, a real API server and kube-score.

use super::{FILES, chart, directory, output, render, tool};
use crate::{Failure, Unavailable, count::Count, debian, metadata};
use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// Value variants that change the rendered manifests.
const VARIANTS: [(&str, &[&str]); 14] = [
    ("as it is", &[]),
    ("one namespace", &["--set", "clusterwide=false,operator.replicas=1,operator.leaderElect=false"]),
    ("some namespaces", &["--set", "watchNamespaces={a,b}"]),
    ("with a runtime", &["--set", "runtime.create=true,runtime.serviceType=NodePort"]),
    ("with a network policy", &["--set", "networkPolicy.enabled=true"]),
    ("with a webhook", &["--set", "webhook.enabled=true,networkPolicy.enabled=true"]),
    ("with a webhook in some namespaces", &["--set", "webhook.enabled=true,watchNamespaces={a,b}"]),
    ("with external metrics", &["--set", METRICS]),
    ("with TLS", &["--set", "tls.secretName=certs,operator.useDeploymentsForServers=true"]),
    ("without users", &["--set", NO_USERS]),
    ("with Secrets for agents", &["--set", "rbac.agentSecrets={*},imagePullSecrets[0].name=registry"]),
    ("with Kafka", &["--set", KAFKA]),
    ("with volumes and priorities", &["--set", VOLUMES]),
    // A cluster without the CRDs of the Prometheus operator.
    ("with monitoring", &["--set", MONITORING]),
];
/// Variants that the API server of the verification does not accept: restricted pods, and no CRDs of others.
const TEMPLATES: [(&str, &[&str]); 2] = [
    ("with a webhook on the node's network", &["--set", "webhook.enabled=true,webhook.hostNetwork=true"]),
    ("with monitoring and its CRDs", &["--api-versions", PROMETHEUS, "--set", MONITORING]),
];
const KAFKA: &str = "kafka.bootstrapServers=kafka:9092,kafka.topics.numPartitions=4,kafka.security.protocol=SASL_SSL,\
                     kafka.security.tls.brokerSecretName=broker,kafka.security.sasl.username=gantry,\
                     kafka.security.sasl.secretName=sasl";
const VOLUMES: &str = "operator.extraVolumes[0].name=tmp,operator.extraVolumes[0].emptyDir.medium=Memory,\
                       operator.extraVolumeMounts[0].name=tmp,operator.extraVolumeMounts[0].mountPath=/tmp,\
                       components.extraVolumes[0].name=tmp,components.extraVolumes[0].emptyDir.medium=Memory,\
                       components.extraVolumeMounts[0].name=tmp,components.extraVolumeMounts[0].mountPath=/tmp,\
                       components.priorityClassName=high,components.evictAfterSeconds=30";
const MONITORING: &str = "metrics.monitors.enabled=true,metrics.rules.enabled=true,metrics.dashboard.enabled=true,\
                          flowSchema.enabled=true";
const PROMETHEUS: &str = "monitoring.coreos.com/v1";
const METRICS: &str =
    "algorithms.enabled=true,algorithms.externalMetrics.enabled=true,networkPolicy.enabled=true";
const NO_USERS: &str =
    "podSecurityContext.runAsUser=null,podSecurityContext.runAsGroup=null,podSecurityContext.fsGroup=null";
/// Values, a text, and how often the rendered chart contains it: the operator, two components and three servers.
const COUNTED: [(&str, &str, usize); 25] = [
    ("imagePullSecrets[0].name=registry", "imagePullSecrets:", 6),
    // The operator, the components, the agents and the built-in runtime.
    ("image.pullPolicy=Always", "imagePullPolicy: Always", 7),
    (NO_USERS, "runAsUser:", 0),
    (NO_USERS, "fsGroup:", 0),
    ("podSecurityContext.runAsUser=7", "runAsUser: 7", 4),
    ("tls.secretName=certs", "--allow-plaintext", 0),
    ("tls.secretName=certs", "secretName: certs", 6),
    ("tls.secretName=certs", "--issue-certificates", 0),
    ("tls.issue=true", "--issue-certificates", 1),
    ("tls.issue=false", "gantry-certificates", 0),
    // The operator, and three for the pods of each runtime.
    ("networkPolicy.enabled=true", "kind: NetworkPolicy", 4),
    ("networkPolicy.enabled=true,networkPolicy.runtimeNamespaces={ml}", "kind: NetworkPolicy", 7),
    (KAFKA, "bootstrap.servers: kafka:9092", 1),
    (KAFKA, "name: KAFKA_", 6),
    ("kafka.security.protocol=SSL", "KAFKA_", 0),
    (VOLUMES, "mountPath: /tmp", 3),
    (VOLUMES, "name: tmp", 6),
    (VOLUMES, "priorityClassName: high", 2),
    (VOLUMES, "tolerationSeconds: 30", 4),
    ("webhook.enabled=true,webhook.hostNetwork=true", "hostNetwork: true", 1),
    ("webhook.hostNetwork=true", "hostNetwork: true", 0),
    (METRICS, "port: 9444", 1),
    ("algorithms.externalMetrics.enabled=true", "external-metrics", 0),
    (MONITORING, "monitoring.coreos.com", 0),
    (MONITORING, "kind: FlowSchema", 1),
];
/// Objects of a cluster with the CRDs of the Prometheus operator.
const MONITORED: [(&str, usize); 4] = [
    ("kind: ServiceMonitor", 1),
    ("kind: PodMonitor", 3),
    ("kind: PrometheusRule", 1),
    ("grafana_dashboard", 1),
];
/// Contradictory or unknown values; the chart must reject them.
const REFUSED: [&str; 7] = [
    "operator.leaderElect=false",
    "oprator.replicas=1",
    "configs.servers={torch}",
    "webhook.failurePolicy=Fail",
    "kafka.bootstrapServers=kafka",
    "kafka.bootstrapServers=kafka:9092,kafka.security.protocol=SASL_SSL",
    "metrics.monitors.every=1s",
];
/// Namespace of the dry runs.
const NAMESPACE: &str = "gantry-verify";

pub(super) fn run(kubeconfig: Option<&Path>) -> Result<Count, Failure> {
    let mut count = Count::default();
    let mut skipped = 0;
    let mut step = |what: &str, outcome: Result<(), Failure>| {
        match &outcome {
            Ok(()) => println!("  {what:<60} ok"),
            Err(failure) => println!("  {what:<60} FAILED\n{failure}"),
        }
        count +=
            Count { passed: u64::from(outcome.is_ok()), failed: u64::from(outcome.is_err()), skipped: 0 };
    };
    let made = super::check()?;
    step("deploy/manifests is what the chart gives", made.then_some(()).ok_or("see above".into()));
    let helm = tool("helm")?;
    step("helm lint --strict", output(Command::new(&helm).args(["lint", "--strict"]).arg(chart())).map(drop));
    for (name, values) in VARIANTS.iter().chain(&TEMPLATES) {
        step(&format!("helm template, {name}"), render(NAMESPACE, values).map(drop));
    }
    for values in REFUSED {
        let refused = match render(NAMESPACE, &["--set", values]) {
            Ok(_) => Err(format!("the chart takes {values}").into()),
            Err(_) => Ok(()),
        };
        step(&format!("the chart refuses {values}"), refused);
    }
    for (values, text, expected) in COUNTED {
        let counted = render(NAMESPACE, &["--set", values]).and_then(|r| counted(&r, text, expected));
        step(&format!("{values:.30}… has {expected} of {text}"), counted);
    }
    let [_, (_, monitored)] = TEMPLATES;
    for (text, expected) in MONITORED {
        let counted = render(NAMESPACE, monitored).and_then(|r| counted(&r, text, expected));
        step(&format!("with the CRDs of Prometheus it has {expected} of {text}"), counted);
    }
    match promtool(monitored) {
        Err(failure) if failure.is::<Unavailable>() => {
            println!("  {:<60} SKIPPED: {failure}", "promtool");
            skipped += 1;
        }
        tested => step("promtool: the alerts are valid, fire and stay silent as in their tests", tested),
    }
    match tool("kube-score") {
        Ok(score) => {
            // kube-score requires the network policy, which is off by default: not every cluster meets its assumptions.
            let values = ["--set", "networkPolicy.enabled=true"];
            let scored = render(NAMESPACE, &values).and_then(|text| score_of(&score, &without_kinds(&text)));
            step("kube-score, the chart", scored);
            step("kube-score, deploy/static", statics().and_then(|text| score_of(&score, &text)));
        }
        Err(why) => {
            println!("  {:<60} SKIPPED: {why}", "kube-score");
            skipped += 1;
        }
    }
    match kubeconfig {
        None => {
            println!(
                "  {:<60} SKIPPED: name one that may be changed with --kubeconfig, as cargo xtask k8s up prints it",
                "a real API server"
            );
            skipped += 1;
        }
        Some(file) => {
            for (name, values) in VARIANTS {
                let tried = cluster(file).and_then(|()| try_on(file, &render(NAMESPACE, values)?, &[]));
                step(&format!("the API server takes the chart, {name}"), tried);
            }
            let tried = statics().and_then(|text| try_on(file, &text, &["--namespace", NAMESPACE]));
            step("the API server takes deploy/static", tried);
        }
    }
    count.skipped = skipped;
    Ok(count)
}

fn counted(rendered: &str, text: &str, expected: usize) -> Result<(), Failure> {
    match rendered.matches(text).count() {
        found if found == expected => Ok(()),
        found => Err(format!("{found} times instead of {expected}").into()),
    }
}

/// kube-score supports built-in kinds only.
fn without_kinds(rendered: &str) -> String {
    let ours = |document: &&str| !document.contains("\napiVersion: mlops.seldon.io/");
    rendered.split("\n---").filter(ours).collect::<Vec<_>>().join("\n---")
}

fn statics() -> Result<String, Failure> {
    let mut text = String::new();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(metadata::root().join("deploy/static"))? {
        files.push(entry?.path());
    }
    files.sort();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "yaml")) {
        text += &format!("---\n{}", std::fs::read_to_string(file)?);
    }
    Ok(text)
}

/// Tests the alerts of the chart with promtool.
fn promtool(monitored: &[&str]) -> Result<(), Failure> {
    let promtool = debian::unpacked("prometheus")?.join("usr/bin/promtool");
    let only = ["--show-only", "templates/prometheusrule.yaml"];
    let rendered = render(NAMESPACE, &[monitored, &only].concat())?;
    let (_, spec) = rendered.split_once("\nspec:\n").ok_or("the PrometheusRule has no spec")?;
    let groups: Vec<&str> = spec.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    let directory = metadata::target().join(format!("alerts-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    std::fs::write(directory.join("alerts.yaml"), groups.join("\n"))?;
    let tests = "alerts_test.yaml";
    std::fs::copy(metadata::root().join("testdata").join(tests), directory.join(tests))?;
    for words in [["check", "rules", "alerts.yaml"], ["test", "rules", tests]] {
        output(Command::new(&promtool).current_dir(&directory).args(words))?;
    }
    std::fs::remove_dir_all(directory).map_err(Into::into)
}

fn score_of(score: &Path, manifests: &str) -> Result<(), Failure> {
    let mut command = Command::new(score);
    // Warnings count.
    command.args(["score", "--exit-one-on-warning", "--output-format", "ci", "-"]);
    feed(&mut command, manifests).map(drop)
}

/// Creates a namespace with the restricted Pod Security standard, the CRDs, and the namespaces of the variants.
fn cluster(kubeconfig: &Path) -> Result<(), Failure> {
    let mut namespaces = String::new();
    for name in [NAMESPACE, "a", "b"] {
        namespaces += &format!(
            "---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n  labels:\n    \
             pod-security.kubernetes.io/enforce: restricted\n    pod-security.kubernetes.io/warn: restricted\n"
        );
    }
    feed(kubectl(kubeconfig)?.args(["apply", "-f", "-"]), &namespaces)?;
    let [kinds, ..] = &FILES;
    let mut apply = kubectl(kubeconfig)?;
    output(apply.args(["apply", "-f"]).arg(directory().join(kinds.name)))?;
    let mut wait = kubectl(kubeconfig)?;
    wait.args(["wait", "--for=condition=Established", "--timeout=60s", "-f"]);
    output(wait.arg(directory().join(kinds.name))).map(drop)
}

/// Server-side dry run. Objects without a namespace use the given one.
fn try_on(kubeconfig: &Path, manifests: &str, namespace: &[&str]) -> Result<(), Failure> {
    let mut command = kubectl(kubeconfig)?;
    command.args(["apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors"]).args(namespace);
    feed(command.args(["-f", "-"]), manifests).map(drop)
}

fn kubectl(kubeconfig: &Path) -> Result<Command, Failure> {
    let mut command = Command::new(tool("kubectl")?);
    command.arg("--request-timeout=30s").arg("--kubeconfig").arg(kubeconfig);
    Ok(command)
}

/// Runs a program with a text on its standard input.
fn feed(command: &mut Command, text: &str) -> Result<String, Failure> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let input = child.stdin.take();
    let text = text.to_owned();
    // Reads its output while writing its input, so that neither blocks.
    let feeding = std::thread::spawn(move || input.map(|mut input| input.write_all(text.as_bytes())));
    let ended = child.wait_with_output()?;
    // A program that exits early reports the reason itself.
    let _ = feeding.join();
    let output = String::from_utf8_lossy(&ended.stdout).into_owned();
    if ended.status.success() {
        return Ok(output);
    }
    Err(format!("{output}{}", String::from_utf8_lossy(&ended.stderr)).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Sources of registries that prefix their metrics.
    const PREFIXED: [(&str, &[&str]); 2] = [
        (
            "gantry_scheduler_",
            &["crates/scheduler/src/metrics.rs", "crates/scheduler/src/rollout_metrics.rs"],
        ),
        ("gantry_kafka_", &["crates/kafka/src/engine/metrics.rs"]),
    ];

    fn sources(directory: &Path, text: &mut String) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, text);
            } else if path.extension().is_some_and(|e| e == "rs") {
                *text += &std::fs::read_to_string(path).unwrap();
            }
        }
    }

    #[test]
    fn alerts_and_dashboard_use_metrics_that_exist() {
        let mut code = String::new();
        for entry in std::fs::read_dir(metadata::root().join("crates")).unwrap() {
            let directory = entry.unwrap().path().join("src");
            if directory.is_dir() {
                sources(&directory, &mut code);
            }
        }
        for file in ["templates/prometheusrule.yaml", "files/dashboard.json"] {
            let text = std::fs::read_to_string(chart().join(file)).unwrap();
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let metrics: BTreeSet<&str> =
                words.filter(|word| word.starts_with("gantry_") || word.starts_with("seldon_")).collect();
            assert!(metrics.len() > 5, "{file} has {metrics:?}");
            for metric in metrics {
                let name = ["_total", "_bucket"].iter().fold(metric, |name, end| name.trim_end_matches(end));
                let prefixed =
                    PREFIXED.iter().find_map(|(prefix, files)| Some((name.strip_prefix(prefix)?, files)));
                let exists = match prefixed {
                    None => code.contains(&format!("\"{name}\"")),
                    Some((own, files)) => files.iter().any(|file| {
                        let text = std::fs::read_to_string(metadata::root().join(file)).unwrap();
                        text.contains(&format!("\"{own}\""))
                    }),
                };
                assert!(exists, "{file}: no source registers {metric}");
            }
        }
    }

    #[test]
    fn custom_resources_are_removed() {
        let rendered = "---\napiVersion: v1\nkind: Service\n---\napiVersion: mlops.seldon.io/v1alpha1\nkind: Server\n---\n\
                        apiVersion: apps/v1\nkind: Deployment\n";
        let left = without_kinds(rendered);
        assert!(
            left.contains("Service") && left.contains("Deployment") && !left.contains("seldon"),
            "{left}"
        );
    }
}
