package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type security struct {
	Authority   string `json:"authority"`   // a file of certificates: TLS, if there is one
	Certificate string `json:"certificate"` // a file with the client's key and certificate
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"` // or the token
}

// secured gives the options of a secure connection, which CLIENT_SECURITY holds as JSON.
func secured() []kgo.Opt {
	var wanted security
	text := os.Getenv("CLIENT_SECURITY")
	if text == "" {
		return nil
	}
	must(json.Unmarshal([]byte(text), &wanted))
	var found []kgo.Opt
	if wanted.Authority != "" {
		found = append(found, kgo.DialTLSConfig(wanted.tls()))
	}
	if mechanism := wanted.sasl(); mechanism != nil {
		found = append(found, kgo.SASL(mechanism))
	}
	return found
}

func (s security) tls() *tls.Config {
	pem, err := os.ReadFile(s.Authority)
	must(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: trusted}
	if s.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(s.Certificate, s.Certificate)
		must(err)
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

func (s security) sasl() sasl.Mechanism {
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: s.Password}.AsMechanism()
	}
	return nil
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
