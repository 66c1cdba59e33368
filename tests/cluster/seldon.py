"""A Seldon Core v2 installation: its CRDs, custom resources with finalizers and status, and the objects of its operator,
with its field manager. Names, labels, ports and inherited metadata are those of Seldon's operator, in its directory operator:

    StatefulSet of a Server     controllers/reconcilers/server/statefulset_reconciler.go, toStatefulSet
    Services of its replicas    controllers/reconcilers/server/service_reconciler.go, toServices
    workloads of components     controllers/reconcilers/seldon/{deployment,statefulset}_reconciler.go, toDeployment and toStatefulSet
    seldon-scheduler and -mesh  controllers/reconcilers/seldon/service_reconciler.go, getSchedulerService and getSeldonMeshService
    keys of labels              pkg/constants/constants.go
"""

import json

from cluster import as_list, custom

# Field manager of Seldon's operator.
MANAGER = "manager"
KINDS = {
    "models": ("Model", "mlm"),
    "servers": ("Server", "mls"),
    "serverconfigs": ("ServerConfig", "mlc"),
    "seldonruntimes": ("SeldonRuntime", None),
    "seldonconfigs": ("SeldonConfig", None),
    "pipelines": ("Pipeline", "mlp"),
    "experiments": ("Experiment", "mlx"),
}
SCALED = ("models", "servers")


def definitions():
    """Its CRDs: no rules, and no schema below spec."""
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for plural, (kind, short) in KINDS.items():
        spec = dict(loose)
        if kind in ("Server", "ServerConfig"):
            # Contains the full PodSpec schema.
            pod = {"type": "object", "properties": {"activeDeadlineSeconds": {"type": "integer", "format": "int64"}}}
            spec = loose | {"properties": {"podSpec": pod | {"x-kubernetes-preserve-unknown-fields": True}}}
        subresources = {"status": {}}
        if plural in SCALED:
            subresources["scale"] = {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            }
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.mlops.seldon.io",
                "annotations": {"controller-gen.kubebuilder.io/version": "v0.17.2", "meta.helm.sh/release-name": "seldon-core-v2-crds"},
            },
            "spec": {
                "group": "mlops.seldon.io",
                "scope": "Namespaced",
                "names": {
                    "plural": plural,
                    "singular": kind.lower(),
                    "kind": kind,
                    "listKind": f"{kind}List",
                } | ({"shortNames": [short]} if short else {}),
                "versions": [
                    {
                        "name": "v1alpha1",
                        "served": True,
                        "storage": True,
                        "subresources": subresources,
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": loose}}},
                    }
                ],
            },
        }


def agent(image="seldonio/seldon-agent:2.10.2"):
    return {
        "name": "agent",
        "image": image,
        "command": ["/bin/agent"],
        "args": ["--tracing-config-path=/mnt/tracing/tracing.json"],
        "env": [
            {"name": "SELDON_SERVER_CAPABILITIES", "value": "mlserver,sklearn,xgboost"},
            {"name": "MEMORY_REQUEST", "valueFrom": {"resourceFieldRef": {"containerName": "mlserver", "resource": "requests.memory"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "seldon-tracing"}}],
        "ports": [{"containerPort": 9501, "name": "grpc"}, {"containerPort": 9006, "name": "metrics"}],
        "resources": {"requests": {"cpu": "200m", "memory": "1024Mi"}},
        "volumeMounts": [{"mountPath": "/mnt/agent", "name": "mlserver-models"}, {"mountPath": "/mnt/config", "name": "config-volume"}],
        "lifecycle": {"preStop": {"httpGet": {"path": "terminate", "port": 9007}}},
    }


def pod(agent):
    """The pod of its ServerConfig mlserver."""
    return {
        "serviceAccountName": "seldon-server",
        "terminationGracePeriodSeconds": 120,
        "securityContext": {"fsGroup": 2000, "runAsUser": 1000, "runAsNonRoot": True},
        "containers": [
            {
                "name": "rclone",
                "image": "seldonio/seldon-rclone:2.10.2",
                "ports": [{"containerPort": 5572, "name": "rclone"}],
                "volumeMounts": [{"mountPath": "/mnt/agent", "name": "mlserver-models"}],
                "lifecycle": {"preStop": {"httpGet": {"path": "terminate", "port": 9007}}},
            },
            agent,
            {
                "name": "mlserver",
                "image": "seldonio/mlserver:1.7.1",
                "env": [{"name": "MLSERVER_HTTP_PORT", "value": "9000"}, {"name": "MLSERVER_GRPC_PORT", "value": "9500"}],
                "ports": [{"containerPort": 9500, "name": "server-grpc"}, {"containerPort": 9000, "name": "server-http"}],
                "resources": {"requests": {"cpu": "100m", "memory": "1G"}},
                "volumeMounts": [{"mountPath": "/mnt/agent", "name": "mlserver-models", "readOnly": True}],
                "lifecycle": {"preStop": {"httpGet": {"path": "terminate", "port": 9007}}},
                "readinessProbe": {"httpGet": {"path": "/v2/health/live", "port": "server-http"}, "initialDelaySeconds": 5},
            },
        ],
        "volumes": [{"name": "config-volume", "configMap": {"name": "seldon-agent"}}],
    }


CLAIMS = [
    {
        "name": "mlserver-models",
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
]


def component(name):
    """A pod without termination settings, as most of its components."""
    return {
        "serviceAccountName": "seldon-scheduler",
        "containers": [
            {
                "name": name.removeprefix("seldon-"),
                "image": f"seldonio/{name}:2.10.2",
                "env": [{"name": "LOG_LEVEL", "value": "info"}],
                "envFrom": [{"configMapRef": {"name": "seldon-tracing"}}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            }
        ],
        "volumes": [{"name": "kafka-config-volume", "configMap": {"name": "seldon-kafka"}}],
    }


# Metadata of its chart's objects; workloads and pods inherit what is neither Helm's nor kubectl's.
HELM = {"meta.helm.sh/release-name": "seldon-core-v2-setup", "meta.helm.sh/release-namespace": "seldon-mesh"}
INHERITED = {
    "labels": {"app.kubernetes.io/managed-by": "Helm", "team": "red", "cost-center": "7"},
    "annotations": {"sidecar.istio.io/inject": "true"},
}


def inherited(*declared):
    """Metadata of a workload and its pods; earlier objects win."""
    merged = {"labels": {}, "annotations": {}}
    for metadata in reversed(declared):
        for field, pairs in merged.items():
            pairs |= metadata.get(field, {})
    return merged


def configurations():
    scheduler_claims = [CLAIMS[0] | {"name": "scheduler-state"}]
    of_helm = {"labels": INHERITED["labels"], "annotations": INHERITED["annotations"] | HELM}
    return [
        custom("ServerConfig", "mlserver", {"podSpec": pod(agent()), "volumeClaimTemplates": CLAIMS}, **of_helm),
        custom(
            "SeldonConfig",
            "default",
            {
                "components": [
                    {"name": "seldon-scheduler", "replicas": 1, "podSpec": component("seldon-scheduler"), "volumeClaimTemplates": scheduler_claims},
                    {"name": "seldon-envoy", "replicas": 1, "podSpec": component("seldon-envoy")},
                    {"name": "seldon-modelgateway", "replicas": 1, "podSpec": component("seldon-modelgateway")},
                ],
                "config": {
                    "agentConfig": {"rclone": {"config_secrets": []}},
                    "kafkaConfig": {"bootstrap.servers": "kafka:9092", "topics": {"numPartitions": 1, "replicationFactor": "1"}},
                    "serviceConfig": {"grpcServicePrefix": "", "serviceType": "ClusterIP"},
                    "tracingConfig": {"disable": False, "otelExporterEndpoint": "seldon-collector:4317", "ratio": "1"},
                },
            },
            **of_helm,
        ),
    ]


def objects(uri):
    """User objects with the defaults of its CRDs and the finalizers of its operator."""
    return [
        custom("SeldonRuntime", "seldon", {"seldonConfig": "default", "overrides": [{"name": "seldon-envoy", "serviceType": "ClusterIP"}], "config": {}}, annotations={"owner": "platform"}, finalizers=["seldon.runtime.finalizer"]),
        custom("Server", "mlserver", {"serverConfig": "mlserver", "replicas": 2, "podSpec": {"containers": [{"name": "mlserver", "env": [{"name": "MLSERVER_HTTP_PORT", "value": "9000"}]}]}}, labels={"team": "blue"}),
        custom("Server", "older", {"serverConfig": "mlserver", "replicas": 1}),
        custom("Model", "iris", {"storageUri": str(uri), "requirements": ["onnx"], "memory": "100Ki", "dataflow": {}}, finalizers=["seldon.model.finalizer"]),
        # Accepted by its CRDs, rejected by its scheduler.
        custom("Model", "odd", {"storageUri": "gs://models/odd", "replicas": 1, "minReplicas": 3}, finalizers=["seldon.model.finalizer"]),
        custom("Pipeline", "chain", {"steps": [{"name": "iris", "inputsJoinType": "inner"}], "output": {"steps": ["iris"], "stepsJoin": "inner"}}, finalizers=["seldon.pipeline.finalizer"]),
        custom("Experiment", "split", {"resourceType": "model", "default": "iris", "candidates": [{"name": "iris", "weight": 50}, {"name": "other", "weight": 50}]}, finalizers=["seldon.experiment.finalizer"]),
    ]


def status(*conditions, **fields):
    at = "2026-01-02T03:04:05Z"
    listed = [{"type": c, "status": "True", "lastTransitionTime": at} for c in (*conditions, "Ready")]
    return {"conditions": listed, **fields}


STATUSES = {
    "model/iris": status("ModelReady", replicas=1, availableReplicas=1, selector="server=mlserver", modelgwReady="ModelAvailable(1/1 ready ) "),
    "server/mlserver": status("StatefulSetOrDeploymentReady", replicas=2, loadedModels=1, selector="seldon-server-name=mlserver"),
    "pipeline/chain": status("PipelineReady", "PipelineGwReady", "ModelsReady"),
    "experiment/split": status("ExperimentReady", "CandidatesReady", "MirrorReady"),
    "seldonruntime/seldon": status("SchedulerReady", "EnvoyReady", "ModelGatewayReady", "DataflowEngineReady", "PipelineGatewayReady", "HodometerReady"),
}


def owner(found):
    return [
        {
            "apiVersion": "mlops.seldon.io/v1alpha1",
            "kind": found["kind"],
            "name": found["metadata"]["name"],
            "uid": found["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


APPLIED = {"seldon.io/last-applied": "UEsDBBQACAAIAAAAAAAAAAAAAAAAAAAAAAAIAAAAb3JpZ2luYWw="}


def workload(kind, name, namespace, owner, selector, labels, inherited, pod, replicas=1, claims=()):
    labels = inherited["labels"] | labels
    template = {"labels": labels | selector, "annotations": inherited["annotations"], "name": name, "namespace": namespace}
    made = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": inherited["annotations"] | APPLIED,
            "ownerReferences": owner,
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "template": {"metadata": template, "spec": pod},
        },
    }
    if kind == "StatefulSet":
        made["spec"]["serviceName"] = name
        made["spec"]["podManagementPolicy"] = "Parallel"
        templates = [{"metadata": {"name": c["name"]}, "spec": c["spec"]} for c in claims]
        made["spec"]["volumeClaimTemplates"] = templates
    return made


def service(name, owner, labels, selector, ports, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels, "ownerReferences": owner},
        "spec": {"selector": selector, "ports": [{"name": n, "port": p, "targetPort": t, "protocol": "TCP"} for n, p, t in ports], **spec},
    }


def permissions(owner, namespace):
    """Roles of its agents and its scheduler, which read every Secret of the namespace."""
    read = lambda resource: {"apiGroups": [""], "resources": [resource], "verbs": ["get", "list", "watch"]}
    for role, binding, account in (
        ("agent-role", "agent-rolebinding", "seldon-server"),
        ("seldon-scheduler-role", "seldon-scheduler-rolebinding", "seldon-scheduler"),
    ):
        api = "rbac.authorization.k8s.io"
        metadata = {"ownerReferences": owner}
        yield {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata | {"name": role}, "rules": [read("configmaps"), read("secrets")]}
        yield {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata | {"name": binding},
            "roleRef": {"apiGroup": api, "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }


def children(kubectl):
    """Objects created by its operator."""
    server = {"app.kubernetes.io/name": "seldon-server"}
    runtime = owner(kubectl.get("seldonruntime", "seldon"))
    made = []
    for name, data in (
        ("seldon-agent", {"agent.yaml": "rclone:\n  config: []\n  config_secrets: []\n"}),
        ("seldon-kafka", {"kafka.json": json.dumps({"bootstrap.servers": "kafka:9092"})}),
        ("seldon-scaling", {"scaling.yaml": "models: {}\nservers: {}\n"}),
        ("seldon-tracing", {"tracing.json": "{}", "OTEL_JAVAAGENT_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://seldon-collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": ""}),
    ):
        made.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": runtime}, "data": data})
    for name in ("seldon-scheduler", "seldon-server", "hodometer"):
        made.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "ownerReferences": runtime}})
    made.extend(permissions(runtime, kubectl.namespace))
    # Its merge duplicates a variable that a Server overrides.
    pods = pod(agent())
    pods["containers"][2]["env"] = [*pods["containers"][2]["env"], {"name": "MLSERVER_HTTP_PORT", "value": "9000"}]
    # Created from an older configuration, with a container that was removed since.
    older = pod(agent("seldonio/seldon-agent:2.8.0"))
    older["containers"].append({"name": "exporter", "image": "seldonio/exporter:1"})
    for name, spec, replicas in (("mlserver", pods, 2), ("older", older, 1)):
        found = kubectl.get("server", name)
        owned = owner(found)
        selector = {"seldon-server-name": name}
        both = inherited({"labels": found["metadata"].get("labels", {})}, INHERITED)
        made.append(workload("StatefulSet", name, kubectl.namespace, owned, selector, server, both, spec, replicas, CLAIMS))
        for i in range(replicas):
            labels = {"seldon-server-replica": name, "seldon-server-replica-name": f"{name}-{i}"}
            at = {"statefulset.kubernetes.io/pod-name": f"{name}-{i}"}
            ports = [("http", 9000, "http"), ("grpc", 9500, "grpc"), ("agent", 9005, 9005)]
            made.append(service(f"{name}-{i}", owned, labels, at, ports, clusterIP="None"))
    named = lambda name: {"app.kubernetes.io/name": name}
    both = inherited({"annotations": {"owner": "platform"}}, INHERITED)
    for kind, name, claims in (
        ("StatefulSet", "seldon-scheduler", [CLAIMS[0] | {"name": "scheduler-state"}]),
        ("Deployment", "seldon-envoy", ()),
        ("Deployment", "seldon-modelgateway", ()),
    ):
        made.append(workload(kind, name, kubectl.namespace, runtime, named(name), named(name), both, component(name), 1, claims))
    ports = [(n, p, n) for n, p in (("xds", 9002), ("scheduler", 9004), ("scheduler-mtls", 9044), ("agent", 9005), ("agent-mtls", 9055), ("dataflow", 9008))]
    made.append(service("seldon-scheduler", runtime, named("seldon-scheduler"), named("seldon-scheduler"), ports, type="ClusterIP"))
    made.append(service("seldon-mesh", runtime, named("seldon-envoy"), named("seldon-envoy"), [("data", 80, "http"), ("stats", 9003, "envoy-stats")], type="ClusterIP"))
    return made


def arrive(kubectl, uri):
    """Installs Seldon Core v2."""
    kubectl("replace", "--field-manager=helm", "-f", "-", stdin=as_list(definitions()))
    kubectl("create", "--field-manager=helm", "-f", "-", stdin=as_list(configurations()))
    kubectl("create", "--field-manager=kubectl-client-side-apply", "-f", "-", stdin=as_list(objects(uri)))
    for name, status in STATUSES.items():
        patch = json.dumps({"status": status})
        kubectl("patch", name, "--subresource=status", "--type=merge", f"--field-manager={MANAGER}", "-p", patch)
    kubectl("create", f"--field-manager={MANAGER}", "-f", "-", stdin=as_list(children(kubectl)))
