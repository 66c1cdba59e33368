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
