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
