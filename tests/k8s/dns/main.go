// The DNS server of the test cluster: CoreDNS with the few plug-ins that a cluster's own names need. What every
// plug-in would bring with it (three clouds' libraries among others) takes longer to build than Kubernetes' kubelet.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// The order in which a question passes through them.
func init() {
	dnsserver.Directives = []string{"health", "ready", "errors", "cache", "kubernetes"}
}

func main() {
	coremain.Run()
}
