use super::*;
use clap::Parser as _;

#[derive(Debug, clap::Parser)]
struct TestCli {
    #[command(flatten)]
    args: Args,
}

fn printed(args: &[&str]) -> Vec<Value> {
    let cli = TestCli::try_parse_from(["install"].iter().chain(args)).unwrap();
    objects(&cli.args).unwrap()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    objects.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name).unwrap()
}

/// One line per object.
fn listed(objects: &[Value]) -> String {
    let line = |o: &Value| {
        let (kind, namespace, name) =
            (text(o, "/kind"), text(o, "/metadata/namespace"), text(o, "/metadata/name"));
        format!("{kind} {namespace}/{name}\n")
    };
    objects.iter().map(line).collect()
}

/// Every string of an object with its path.
fn strings(value: &Value, at: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) => found.push((at.to_owned(), text.clone())),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| strings(item, &format!("{at}/{i}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| strings(field, &format!("{at}/{name}"), found));
        }
        _ => {}
    }
}

#[test]
fn default_output_watches_all_namespaces() {
    insta::assert_snapshot!("default", listed(&printed(&[])));
    assert_eq!(printed(&["--clusterwide", "--dry-run"]), printed(&[]));
}

#[test]
fn webhook_follows_the_operator_namespace() {
    let objects =
        printed(&["--no-crds", "--no-configs", "--webhook", "-n", "ops", "--watch-namespaces", "ml"]);
    let plain = printed(&["--no-crds", "--no-configs", "-n", "ops", "--watch-namespaces", "ml"]);
    assert!(!listed(&plain).contains("ebhook"), "the webhook is optional");
    assert_eq!(objects.iter().filter(|o| o["kind"] == "Deployment").count(), 1);
    let args =
        &find(&objects, "Deployment", "gantry-operator")["spec"]["template"]["spec"]["containers"][0]["args"];
    assert!(args.as_array().unwrap().contains(&"--webhook".into()), "{args}");
    let hook = &find(&objects, "ValidatingWebhookConfiguration", "gantry-webhook")["webhooks"][0];
    assert_eq!(hook["failurePolicy"], "Ignore");
    assert_eq!(text(hook, "/clientConfig/service/namespace"), "ops");
    assert_eq!(hook["namespaceSelector"]["matchExpressions"][0]["values"], serde_json::json!(["ml", "ops"]));
    assert_eq!(text(find(&objects, "Secret", "gantry-webhook"), "/metadata/namespace"), "ops");
    // Permissions for the two objects are restricted by name.
    let rules = &find(&objects, "ClusterRole", "gantry-webhook")["rules"];
    assert_eq!(rules[0]["resourceNames"], serde_json::json!(["gantry-webhook"]), "{rules}");
}

#[test]
fn watch_namespaces_limits_rbac_to_them() {
    let objects = printed(&["--no-crds", "--watch-namespaces", "ml,shop", "-n", "gantry"]);
    insta::assert_snapshot!("some-namespaces", listed(&objects));
    let everywhere = |o: &&Value| {
        o["kind"] == "ClusterRoleBinding"
            || (o["kind"] == "ClusterRole" && o.pointer("/metadata/name") == Some(&"gantry-operator".into()))
    };
    assert_eq!(objects.iter().find(everywhere), None);
    let deployment = find(&objects, "Deployment", "gantry-operator");
    let args = deployment.pointer("/spec/template/spec/containers/0/args").unwrap().as_array().unwrap();
    let at = args.iter().position(|a| a == "--watch-namespaces=ml,shop").unwrap();
    assert_eq!(args[at - 1], "--clusterwide");
    for binding in objects.iter().filter(|o| o["kind"] == "RoleBinding") {
        assert_eq!(text(binding, "/subjects/0/namespace"), "gantry", "{binding}");
        assert_eq!(text(binding, "/roleRef/kind"), "Role", "{binding}");
    }
}

#[test]
fn watch_namespaces_without_aggregation_is_namespaced() {
    let objects = printed(&["--no-crds", "--watch-namespaces", "ml", "--no-aggregate"]);
    let of_cluster: Vec<&str> = objects
        .iter()
        .filter(|o| text(o, "/metadata/namespace").is_empty())
        .map(|o| text(o, "/kind"))
        .collect();
    assert_eq!(of_cluster, ["Namespace"]);
}

#[test]
fn watching_the_own_namespace_creates_one_role() {
    let objects = printed(&["--no-crds", "--watch-namespaces", "ml", "-n", "ml"]);
    let roles = objects.iter().filter(|o| o["kind"] == "Role" && o["metadata"]["name"] == "gantry-operator");
    assert_eq!(roles.count(), 1);
}

#[test]
fn namespace_and_image_are_replaced_everywhere() {
    let objects = printed(&["--runtime", "-n", "serving", "--image", "r.example/gantry@sha256:1"]);
    let crds = 8;
    let mut found = Vec::new();
    for object in &objects[crds..] {
        strings(object, text(object, "/kind"), &mut found);
    }
    let is_old = |(at, t): &&(String, String)| {
        (t == "seldon-mesh" && (at.ends_with("/namespace") || at == "Namespace/metadata/name"))
            || t.starts_with("gantry:")
    };
    let old: Vec<_> = found.iter().filter(is_old).collect();
    assert!(old.is_empty(), "{old:?}");
    let variable = |(_, t): &&(String, String)| t == "r.example/gantry@sha256:1";
    assert!(found.iter().filter(variable).count() >= 2, "the container image and GANTRY_IMAGE");
    // The Service has the same name as the default namespace and keeps it.
    assert!(found.iter().any(|(at, t)| at.starts_with("ServerConfig/spec") && t == "seldon-mesh"));
    find(&objects, "Namespace", "serving");
    find(&objects, "SeldonRuntime", "seldon");
    find(&objects, "Server", "gantry");
}

#[test]
fn crds_and_no_crds_partition_the_output() {
    let (crds, rest) = (printed(&["--crds"]), printed(&["--no-crds"]));
    assert!(crds.iter().all(|o| o["kind"] == "CustomResourceDefinition"));
    assert_eq!([crds, rest].concat(), printed(&[]));
}

#[test]
fn no_configs_omits_only_configs() {
    let is_config = |o: &Value| CONFIG_KINDS.contains(&text(o, "/kind"));
    let (with, without) = (printed(&["--no-crds"]), printed(&["--no-crds", "--no-configs"]));
    assert!(with.iter().any(is_config) && !without.iter().any(is_config));
    let rest: Vec<Value> = with.into_iter().filter(|o| !is_config(o)).collect();
    assert_eq!(rest, without);
}

#[test]
fn operator_pod_meets_the_restricted_profile() {
    let objects = printed(&["--no-crds"]);
    let pod = &find(&objects, "Deployment", "gantry-operator")["spec"]["template"]["spec"];
    insta::assert_snapshot!("pod", document(pod, &Format::Yaml).unwrap());
}

#[test]
fn rbac_has_no_wildcards_and_named_secrets_only() {
    let mut rules = 0;
    for object in printed(&["--no-crds"]) {
        for rule in object["rules"].as_array().into_iter().flatten() {
            rules += 1;
            let is_named = rule["resourceNames"].as_array().is_some_and(|names| !names.is_empty());
            let rule = rule.to_string();
            assert!(is_named || !rule.contains("secrets"), "{rule}");
            assert!(!rule.contains('*') && !rule.contains("escalate"), "{rule}");
        }
    }
    assert!(rules > 10);
}

#[test]
fn agent_secrets_grants_named_secrets_only() {
    let objects = printed(&["--no-crds", "--agent-secrets", "rclone,gs.public", "--watch-namespaces", "ml"]);
    let of_secrets = |o: &&Value| o["rules"].to_string().contains("secrets");
    let roles: Vec<&Value> = objects.iter().filter(of_secrets).collect();
    assert_eq!(
        listed(&roles.iter().map(|r| (*r).clone()).collect::<Vec<_>>()),
        "Role ml/gantry-operator\nRole seldon-mesh/gantry-operator\nRole seldon-mesh/gantry-certificates\n"
    );
    for role in roles.into_iter().filter(|role| text(role, "/metadata/name") == "gantry-operator") {
        let rule = role["rules"].as_array().unwrap().last().unwrap();
        assert_eq!(
            (&rule["resourceNames"], &rule["verbs"]),
            (&serde_json::json!(["rclone", "gs.public"]), &serde_json::json!(["get"]))
        );
    }
    let flags = |objects: &[Value]| {
        let operator = find(objects, "Deployment", "gantry-operator");
        operator["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    assert!(flags(&objects).contains("\"--agent-secrets=rclone,gs.public\""));
    assert!(!flags(&printed(&["--no-crds"])).contains("agent-secrets"));
}

#[test]
fn agent_secrets_star_grants_every_secret() {
    let objects = printed(&["--no-crds", "--agent-secrets", "*", "--webhook"]);
    let rule = find(&objects, "ClusterRole", "gantry-operator")["rules"].as_array().unwrap().last().unwrap();
    let expected = serde_json::json!({ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] });
    assert_eq!(rule, &expected);
}

/// Group, resource and verb of each rule of a role.
fn grants(role: &Value) -> std::collections::BTreeSet<[String; 3]> {
    let words = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut all = std::collections::BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                all.extend(
                    words(rule, "verbs").into_iter().map(|verb| [group.clone(), resource.clone(), verb]),
                );
            }
        }
    }
    all
}

#[test]
fn inference_services_add_crds_runtimes_flag_and_rules() {
    let plain = printed(&[]);
    let objects = printed(&["--inference-services", "--webhook"]);
    let crds = |objects: &[Value]| -> Vec<String> {
        let crds = objects.iter().filter(|o| o["kind"] == "CustomResourceDefinition");
        crds.map(|crd| text(crd, "/spec/group").to_owned()).filter(|g| g == "serving.kserve.io").collect()
    };
    assert_eq!((crds(&plain).len(), crds(&objects).len()), (0, 6));
    assert_eq!(crds(&printed(&["--crds", "--inference-services"])).len(), 6);
    for beside_kserve in [&["--crds"][..], &[]] {
        let args = [&["--inference-services", "--no-kserve-crds"], beside_kserve].concat();
        assert_eq!(crds(&printed(&args)).len(), 0, "KServe has its own");
    }
    for runtime in ["gantry", "gantry-mlserver", "gantry-triton"] {
        find(&objects, "ClusterServingRuntime", runtime);
    }
    let flags = |objects: &[Value]| {
        let operator = find(objects, "Deployment", "gantry-operator");
        operator["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap().clone()
    };
    let is_flag = |arg: &&Value| **arg == "--inference-services";
    assert_eq!(flags(&objects).iter().filter(is_flag).count(), 1);
    assert!(flags(&objects).contains(&"--webhook".into()), "beside the webhook");
    assert_eq!(flags(&plain).iter().find(is_flag), None);
    // As the chart grants them.
    let registry = gantry_operator::controllers::Registry::built_in().with_inference_services();
    let granted = grants(find(&objects, "ClusterRole", "gantry-operator"));
    for rule in registry.rbac_rules() {
        for verb in rule.verbs {
            let needed = [rule.group.to_owned(), rule.resource.clone(), (*verb).to_owned()];
            assert!(granted.contains(&needed), "{needed:?}");
        }
    }
    assert!(TestCli::try_parse_from(["install", "--no-kserve-crds"]).is_err());
}

/// Complaint 18: an installation for some namespaces, which reads cluster-wide runtimes and nothing else outside of them.
#[test]
fn complaint_18_inference_services_of_some_namespaces() {
    let objects = printed(&["--no-crds", "--inference-services", "--watch-namespaces", "ml", "-n", "ops"]);
    let role = find(&objects, "ClusterRole", "gantry-operator-serving-runtimes");
    let group = || "serving.kserve.io".to_owned();
    let expected = ["clusterservingruntimes", "clusterstoragecontainers"].map(str::to_owned);
    let expected = expected
        .into_iter()
        .flat_map(|resource| ["list", "watch"].map(|verb| [group(), resource.clone(), verb.to_owned()]));
    assert_eq!(grants(role), expected.collect());
    let binding = find(&objects, "ClusterRoleBinding", "gantry-operator-serving-runtimes");
    assert_eq!(text(binding, "/subjects/0/namespace"), "ops");
    assert_eq!(text(binding, "/roleRef/name"), "gantry-operator-serving-runtimes");
    let is_operator =
        |o: &&Value| text(o, "/metadata/name") == "gantry-operator" && text(o, "/kind") == "ClusterRole";
    assert_eq!(objects.iter().find(is_operator), None);
    let in_namespace = objects.iter().find(|o| o["kind"] == "Role" && text(o, "/metadata/namespace") == "ml");
    let services = [group(), "inferenceservices".to_owned(), "list".to_owned()];
    assert!(grants(in_namespace.unwrap()).contains(&services));
}

/// Complaint 15: no installation waits for cert-manager, and no webhook stands before the objects of KServe.
#[test]
fn complaint_15_installation_needs_no_cert_manager() {
    for args in [&["--inference-services"][..], &["--inference-services", "--webhook"]] {
        let objects = printed(args);
        let text = serde_json::to_string(&objects).unwrap();
        assert!(!text.contains("cert-manager"));
        for hook in objects.iter().filter(|o| o["kind"] == "ValidatingWebhookConfiguration") {
            let hooks = hook["webhooks"].as_array().unwrap();
            assert!(hooks.iter().all(|hook| hook["failurePolicy"] == "Ignore"));
        }
        assert!(objects.iter().all(|o| o["kind"] != "MutatingWebhookConfiguration"));
    }
}

#[test]
fn invalid_names_are_rejected() {
    for (args, message) in [
        (&["-n", "Ml"][..], "--namespace \"Ml\" contains 'M'"),
        (&["--watch-namespaces", "a,b_c"], "--watch-namespaces \"b_c\" contains '_'"),
        (&["--agent-secrets", "a/b"], "--agent-secrets \"a/b\" contains '/'"),
        (&["--image", "a b"], "--image \"a b\" is not an image"),
        (&["--image", ""], "--image \"\" is not an image"),
    ] {
        let cli = TestCli::try_parse_from(["install"].iter().chain(args)).unwrap();
        let error = objects(&cli.args).unwrap_err();
        assert!(error.message.starts_with(message), "{error}");
    }
    for args in [
        &["--crds", "--no-crds"][..],
        &["--crds", "--runtime"],
        &["--clusterwide", "--watch-namespaces", "a"],
    ] {
        assert!(TestCli::try_parse_from(["install"].iter().chain(args)).is_err(), "{args:?}");
    }
}
