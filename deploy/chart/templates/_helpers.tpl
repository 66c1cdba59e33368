{{- define "gantry.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "gantry.operator" -}}
{{ include "gantry.name" . }}-operator
{{- end -}}

{{- define "gantry.account" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "gantry.operator" .) .Values.serviceAccount.name }}
{{- else -}}
{{ required "serviceAccount.create is false: name the account in serviceAccount.name" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "gantry.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gantry.selector" -}}
app.kubernetes.io/name: gantry
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* managed-by=gantry marks objects created by the operator: objects of the chart must not have it. */}}
{{- define "gantry.externalMetrics" -}}
{{- if and .Values.algorithms.enabled .Values.algorithms.externalMetrics.enabled }}true{{ end -}}
{{- end -}}

{{- define "gantry.labels" -}}
app.kubernetes.io/name: gantry
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Namespaces with a Role for the operator, unless it has a ClusterRole. */}}
{{- define "gantry.namespaces" -}}
{{- $listed := ternary .Values.watchNamespaces list .Values.clusterwide -}}
{{- append $listed .Release.Namespace | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* Whether the operator has a ClusterRole. */}}
{{- define "gantry.everywhere" -}}
{{- if and .Values.clusterwide (not .Values.watchNamespaces) -}}true{{- end -}}
{{- end -}}

{{/* Whether the operator issues certificates. */}}
{{- define "gantry.issues" -}}
{{- if and .Values.tls.issue (not .Values.tls.secretName) -}}true{{- end -}}
{{- end -}}

{{/* Labels of configurations, runtimes and servers. Their pods inherit them: a label that changes with the chart would
restart them. */}}
{{- define "gantry.inheritedLabels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{- end }}
{{- end -}}

{{/* Fields of a pod's securityContext that are set; null removes one. */}}
{{- define "gantry.user" -}}
{{- $user := dict -}}
{{- range $field, $value := default dict .Values.podSecurityContext -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $user $field (int64 $value) -}}{{- end -}}
{{- end -}}
{{- toJson $user -}}
{{- end -}}

{{/* Adapts .pod of a configuration to the values: pull secrets and policy, user, and certificates for the connections of
Gantry's scheduler, gateway and agents. Containers without an image run Gantry's. */}}
{{- define "gantry.adaptPod" -}}
{{- $pod := .pod -}}
{{- $values := .root.Values -}}
{{- with $values.imagePullSecrets -}}{{- $_ := set $pod "imagePullSecrets" . -}}{{- end -}}
{{- $user := include "gantry.user" .root | fromJson -}}
{{- range $field := list "runAsUser" "runAsGroup" "fsGroup" -}}
{{- if not (hasKey $user $field) -}}
{{- $_ := unset $pod.securityContext $field -}}
{{- else if eq (int64 (get $pod.securityContext $field)) 65532 -}}
{{- $_ := set $pod.securityContext $field (get $user $field) -}}
{{- end -}}
{{- end -}}
{{- $certs := dict "ca" "/certs/ca.crt" "cert" "/certs/tls.crt" "key" "/certs/tls.key" -}}
{{- $tls := false -}}
{{- range $container := $pod.containers -}}
{{- if not $container.image -}}
{{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy -}}
{{- $role := first $container.args -}}
{{- if and $values.tls.secretName (has $role (list "scheduler" "gateway" "agent")) -}}
{{- $tls = true -}}
{{- $names := ternary (dict "GANTRY_TLS_CERT" "cert" "GANTRY_TLS_KEY" "key" "GANTRY_TLS_CLIENT_CA" "ca") (dict "GANTRY_TLS_CA" "ca" "GANTRY_TLS_CLIENT_CERT" "cert" "GANTRY_TLS_CLIENT_KEY" "key") (eq $role "scheduler") -}}
{{- range $name, $file := $names -}}
{{- $_ := set $container "env" (append (default list $container.env) (dict "name" $name "value" (get $certs $file))) -}}
{{- end -}}
{{- if eq $role "scheduler" -}}
{{- $_ := set $container "env" (append $container.env (dict "name" "GANTRY_ROLE_OF_UNMARKED_CERTIFICATES" "value" "any")) -}}
{{- end -}}
{{- $args := list -}}
{{- range $argument := without $container.args "--allow-plaintext" -}}
{{- $args = append $args (replace "seldon-scheduler:9004" "seldon-scheduler:9044" $argument) -}}
{{- end -}}
{{- $_ := set $container "args" $args -}}
{{- $mount := dict "name" "certs" "mountPath" "/certs" "readOnly" true -}}
{{- $_ := set $container "volumeMounts" (append (default list $container.volumeMounts) $mount) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $tls -}}
{{- $certificates := dict "secretName" $values.tls.secretName "defaultMode" 288 -}}
{{- $volume := dict "name" "certs" "secret" $certificates -}}
{{- $_ := set $pod "volumes" (append (default list $pod.volumes) $volume) -}}
{{- end -}}
{{- end -}}

{{/* Whether the operator's pods use the network of their node. */}}
{{- define "gantry.hostNetwork" -}}
{{- if and .Values.webhook.enabled .Values.webhook.hostNetwork -}}true{{- end -}}
{{- end -}}

{{/* Adapts .pod of the scheduler or the gateway to the values. */}}
{{- define "gantry.adaptComponent" -}}
{{- $pod := .pod -}}
{{- $values := .root.Values.components -}}
{{- with $values.priorityClassName -}}{{- $_ := set $pod "priorityClassName" . -}}{{- end -}}
{{- if not (kindIs "invalid" $values.evictAfterSeconds) -}}
{{- $tolerations := default list $pod.tolerations -}}
{{- range $key := list "node.kubernetes.io/unreachable" "node.kubernetes.io/not-ready" -}}
{{- $tolerations = append $tolerations (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" (int64 $values.evictAfterSeconds)) -}}
{{- end -}}
{{- $_ := set $pod "tolerations" $tolerations -}}
{{- end -}}
{{- with $values.extraVolumes -}}{{- $_ := set $pod "volumes" (concat (default list $pod.volumes) .) -}}{{- end -}}
{{- $kafka := include "gantry.kafkaEnv" .root | fromYamlArray -}}
{{- range $container := $pod.containers -}}
{{- if not $container.image -}}
{{- with $values.extraVolumeMounts -}}
{{- $_ := set $container "volumeMounts" (concat (default list $container.volumeMounts) .) -}}
{{- end -}}
{{- if and $kafka (eq (first $container.args) "gateway") -}}
{{- $_ := set $container "env" (concat (default list $container.env) $kafka) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* kafkaConfig of the SeldonConfig; nothing without brokers. */}}
{{- define "gantry.kafkaConfig" -}}
{{- with .Values.kafka -}}
{{- if .bootstrapServers }}
bootstrap.servers: {{ .bootstrapServers | quote }}
{{- with .topicPrefix }}
topicPrefix: {{ . | quote }}
{{- end }}
{{- with .consumerGroupIdPrefix }}
consumerGroupIdPrefix: {{ . | quote }}
{{- end }}
{{- range $section := list "topics" "consumer" "producer" }}
{{- with get $.Values.kafka $section }}
{{ $section }}:
  {{- range $name, $value := . }}
  {{- /* Helm's numbers are floats, which a large one is printed as. */}}
  {{ $name }}: {{ if kindIs "string" $value }}{{ $value | quote }}{{ else }}{{ int64 $value }}{{ end }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Variables of the gateway for TLS and SASL to Kafka; the operator mounts the Secrets that they name. */}}
{{- define "gantry.kafkaEnv" -}}
{{- $kafka := .Values.kafka -}}
{{- $security := $kafka.security -}}
{{- if and $kafka.bootstrapServers (ne $security.protocol "PLAINTEXT") -}}
{{- $sasl := hasPrefix "SASL_" $security.protocol -}}
{{- $tls := hasSuffix "SSL" $security.protocol -}}
- name: KAFKA_CLIENT_SECURITY_PROTOCOL
  value: {{ $security.protocol }}
{{- if and $tls $security.tls.brokerSecretName }}
- name: KAFKA_BROKER_TLS_SECRET_NAME
  value: {{ $security.tls.brokerSecretName | quote }}
{{- end }}
{{- if and $tls $security.tls.clientSecretName }}
- name: KAFKA_CLIENT_TLS_SECRET_NAME
  value: {{ $security.tls.clientSecretName | quote }}
{{- end }}
{{- if $sasl }}
- name: KAFKA_CLIENT_SASL_MECHANISM
  value: {{ $security.sasl.mechanism }}
- name: KAFKA_CLIENT_SASL_USERNAME
  value: {{ required "kafka.security.protocol uses SASL: set kafka.security.sasl.username" $security.sasl.username | quote }}
- name: KAFKA_CLIENT_SASL_SECRET_NAME
  value: {{ required "kafka.security.protocol uses SASL: set kafka.security.sasl.secretName" $security.sasl.secretName | quote }}
- name: KAFKA_CLIENT_SASL_PASSWORD_LOCATION
  value: {{ $security.sasl.passwordKey | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Whether the cluster has the CRDs of the Prometheus operator. */}}
{{- define "gantry.hasMonitoring" -}}
{{- if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}true{{- end -}}
{{- end -}}

{{/* namespaceSelector of the monitors. */}}
{{- define "gantry.monitoredNamespaces" -}}
{{- if include "gantry.everywhere" . -}}
any: true
{{- else -}}
matchNames:
  {{- include "gantry.namespaces" . | fromJsonArray | toYaml | nindent 2 }}
{{- end -}}
{{- end -}}
