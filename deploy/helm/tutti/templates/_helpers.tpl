{{- define "tutti.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 }}{{ end }}
{{- end }}

{{- define "tutti.selector" -}}
app.kubernetes.io/name: tutti
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tutti.metadata" -}}
name: {{ include "tutti.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "tutti.labels" . | nindent 2 }}
{{- end }}

{{- define "tutti.labels" -}}
{{ include "tutti.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "tutti.image" -}}
{{- $kind := ternary "cuda" "cpu" (eq (default "cpu" .Values.settings.device) "cuda") }}
{{- $tag := default (printf "%s-%s" $kind .Chart.AppVersion) .Values.image.tag }}
{{- .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{- define "tutti.keys" -}}
{{ default (printf "%s-keys" (include "tutti.name" .)) .Values.keys.secret }}
{{- end }}

{{- define "tutti.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001    # to read the keys
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "tutti.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{/* A container that fetches the published model into /models. The folder appears complete or not at all. */}}
{{- define "tutti.fetch" -}}
name: fetch-model
image: {{ include "tutti.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - { name: MODEL, value: {{ .Values.model.name | quote }} }
args: ["sh", "-c", "test -d \"/models/$MODEL\" || exec tutti model fetch \"$MODEL\" --out \"/models/$MODEL\""]
resources:
  requests: { cpu: "1", memory: 1Gi }
  limits: { memory: 3Gi }
securityContext:
  {{- include "tutti.containerSecurity" . | nindent 2 }}
volumeMounts:
  - { name: tmp, mountPath: /tmp }
  - { name: models, mountPath: /models }
{{- end }}

{{/* Load in replicas: channels of the replicas that do not drain, without those at rest, over the channels that one of them carries. */}}
{{- define "tutti.load" -}}
{{- $draining := printf "unless on (namespace, pod) tutti_sessions_draining{%s} > 0" . }}
{{- $channels := printf "sum(tutti_sessions_active{%s} %s) - sum(tutti_resting_channels{%s} %s)" . $draining . $draining }}
{{- printf "(%s) / avg(tutti_sessions_max{%s} %s)" $channels . $draining }}
{{- end }}

{{/* The name of the port that serves /metrics. */}}
{{- define "tutti.metricsPort" -}}
{{ ternary "metrics" "http" (not (empty .Values.settings.metrics_port)) }}
{{- end }}

{{/* The dashboard does not use metrics of Python's own collector. */}}
{{- define "tutti.droppedMetrics" -}}
- { action: drop, sourceLabels: [__name__], regex: python_gc_.* }
{{- end }}
