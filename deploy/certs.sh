#!/bin/sh
# Creates a CA, a server certificate for the scheduler, and a client certificate for each role.
#
#   sh deploy/certs.sh DIR NAME...                      NAME: a host name or address of the scheduler
#   sh deploy/certs.sh DIR --role ROLE[/NAME] FILE      one more client certificate, such as
#                                                       --role agent/mlserver/0 mlserver-0
#
# Roles: client (the command line, automation), viewer, agent, gateway, operator. The role is a URI of the certificate,
# spiffe://TRUST-DOMAIN/gantry/role/ROLE; GANTRY_TRUST_DOMAIN sets the domain, gantry.local by default.
#
# Run it again to renew the certificates: the CA is kept, and running processes reload the files within seconds.
set -eu
usage="use certs.sh DIR NAME..., or certs.sh DIR --role ROLE[/NAME] FILE"
domain=${GANTRY_TRUST_DOMAIN:-gantry.local}
dir=${1:?$usage}
shift
mkdir -p "$dir"
cd "$dir"
umask 077
key() { openssl ecparam -name prime256v1 -genkey -noout 2>/dev/null | openssl pkcs8 -topk8 -nocrypt; }

if [ ! -f ca.key ]; then
    key >ca.key
    openssl req -x509 -new -key ca.key -days 3650 -subj "/CN=gantry CA" -out ca.crt
fi
# issue FILE SUBJECT EXTENSIONS
issue() {
    key >"$1.key.new"
    openssl req -new -key "$1.key.new" -subj "/CN=$2" -out "$1.csr"
    printf '%s\n' "basicConstraints=CA:FALSE" "$3" >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 90 -extfile "$1.ext" \
        -out "$1.crt.new" 2>/dev/null
    mv "$1.key.new" "$1.key"
    mv "$1.crt.new" "$1.crt"
    rm "$1.csr" "$1.ext"
    chmod 644 "$1.crt"
}
# issue_role FILE ROLE
issue_role() {
    issue "$1" "$1" "extendedKeyUsage=clientAuth
subjectAltName=URI:spiffe://$domain/gantry/role/$2"
}
chmod 644 ca.crt
if [ "${1:-}" = --role ]; then
    role=${2:?$usage}
    file=${3:?$usage}
    case ${role%%/*} in
        client | viewer | agent | gateway | operator) ;;
        *)
            echo "certs.sh: ${role%%/*} is not a role: use client, viewer, agent, gateway or operator" >&2
            exit 2
            ;;
    esac
    case $file in
        ca | scheduler | */*)
            echo "certs.sh: $file is not a name for a client certificate: use one without / other than ca and scheduler" >&2
            exit 2
            ;;
    esac
    issue_role "$file" "$role"
    echo "$dir: $file.crt and $file.key with the role $role"
    exit
fi
names=DNS:localhost
for name in "$@"; do
    case $name in
        *[!0-9.:]*) names="$names,DNS:$name" ;;
        *) names="$names,IP:$name" ;;
    esac
done
issue scheduler scheduler "extendedKeyUsage=serverAuth
subjectAltName=$names"
for role in client viewer agent gateway operator; do
    issue_role "$role" "$role"
done
echo "$dir: ca.crt; scheduler.crt and scheduler.key for $names; .crt and .key of the roles client, viewer, agent, gateway and operator"
