{{- define "headrace.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- /* What both pods have: no rights, no variables of services (HEADRACE_PORT=tcp://... would be a setting), time to drain. */}}
{{- define "headrace.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add .root.Values.shutdown.graceSeconds 10 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "headrace.container" -}}
image: {{ include "headrace.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: data
    mountPath: /var/lib/headrace
  - name: tmp
    mountPath: /tmp
{{- end }}

{{- /* No liveness probe: the path answers 503 while the pod drains. */}}
{{- define "headrace.probes" -}}
startupProbe:
  httpGet:
    path: {{ .path }}
    port: http
  periodSeconds: 2
  failureThreshold: {{ .startFailures }}
readinessProbe:
  httpGet:
    path: {{ .path }}
    port: http
  periodSeconds: 2
  failureThreshold: 1
{{- end }}

{{- define "headrace.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end }}

{{- define "headrace.secret" -}}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}

{{- /* Pods on nodes of their own, if there must or should be enough of them. */}}
{{- define "headrace.apart" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "headrace.selector" .labels | fromYaml)) -}}
{{- if eq .kind "required" -}}
requiredDuringSchedulingIgnoredDuringExecution:
  - {{- toYaml $term | nindent 4 }}
{{- else -}}
preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 100
    podAffinityTerm: {{- toYaml $term | nindent 6 }}
{{- end }}
{{- end }}
